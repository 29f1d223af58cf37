//! BSON, the documents of MongoDB's protocol: as much of it as the lab sends and reads.

use super::messages::{cut, cut_array, cut_text};

const DOUBLE: u8 = 0x01;
const TEXT: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
const UNDEFINED: u8 = 0x06;
const OBJECT_ID: u8 = 0x07;
const BOOL: u8 = 0x08;
const DATE: u8 = 0x09;
const NULL: u8 = 0x0a;
const INT32: u8 = 0x10;
const TIMESTAMP: u8 = 0x11;
const INT64: u8 = 0x12;

/// Appends a document with the elements that `push_elements` appends.
#[inline]
pub(super) fn push_document(buffer: &mut Vec<u8>, push_elements: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    push_elements(buffer);
    buffer.push(0);
    let length = (buffer.len() - start) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

#[inline]
fn push_name(buffer: &mut Vec<u8>, kind: u8, name: &str) {
    buffer.push(kind);
    buffer.extend_from_slice(name.as_bytes());
    buffer.push(0);
}

#[inline]
pub(super) fn push_inner(
    buffer: &mut Vec<u8>,
    name: &str,
    push_elements: impl FnOnce(&mut Vec<u8>),
) {
    push_name(buffer, DOCUMENT, name);
    push_document(buffer, push_elements);
}

/// Appends the element `name`: an array whose only element is the document that `push_elements`
/// fills.
#[inline]
pub(super) fn push_list(
    buffer: &mut Vec<u8>,
    name: &str,
    push_elements: impl FnOnce(&mut Vec<u8>),
) {
    push_name(buffer, ARRAY, name);
    push_document(buffer, |list| push_inner(list, "0", push_elements));
}

#[inline]
pub(super) fn push_text(buffer: &mut Vec<u8>, name: &str, text: &[u8]) {
    push_name(buffer, TEXT, name);
    buffer.extend_from_slice(&(text.len() as u32 + 1).to_le_bytes());
    buffer.extend_from_slice(text);
    buffer.push(0);
}

#[inline]
pub(super) fn push_binary(buffer: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    push_name(buffer, BINARY, name);
    buffer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    // The generic subtype.
    buffer.push(0);
    buffer.extend_from_slice(bytes);
}

#[inline]
pub(super) fn push_true(buffer: &mut Vec<u8>, name: &str) {
    push_name(buffer, BOOL, name);
    buffer.push(1);
}

#[inline]
pub(super) fn push_int32(buffer: &mut Vec<u8>, name: &str, number: i32) {
    push_name(buffer, INT32, name);
    buffer.extend_from_slice(&number.to_le_bytes());
}

#[inline]
pub(super) fn push_int64(buffer: &mut Vec<u8>, name: &str, number: i64) {
    push_name(buffer, INT64, name);
    buffer.extend_from_slice(&number.to_le_bytes());
}

/// The value of an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Element<'a> {
    Double(f64),
    Text(&'a [u8]),
    /// A document or an array, as bytes.
    Document(&'a [u8]),
    Binary(&'a [u8]),
    Bool(bool),
    Integer(i64),
    /// A value of a type that the lab does not read.
    Other,
}

impl Element<'_> {
    /// Returns the number, if the element is a number without a fraction. A Boolean counts as 0 or
    /// 1.
    pub(super) fn integer(self) -> Option<i64> {
        match self {
            Element::Integer(number) => Some(number),
            // Above 2^53 a double cannot represent every integer.
            Element::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                Some(number as i64)
            }
            Element::Bool(truth) => Some(truth.into()),
            _ => None,
        }
    }
}

/// Finds the element `name` of a document. Returns an error if the document is broken before that
/// element.
pub(super) fn find<'a>(
    document: &'a [u8],
    name: &str,
) -> std::result::Result<Option<Element<'a>>, String> {
    let broken = || "a broken document".to_owned();
    let mut rest = elements(document).ok_or_else(broken)?;
    while !rest.is_empty() {
        let (found, element) = next(&mut rest).ok_or_else(broken)?;
        if found == name.as_bytes() {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// Returns the first element of an array of documents, or `None` if the array is empty. Returns an
/// error if the first element is not a document.
pub(super) fn first_document(array: &[u8]) -> std::result::Result<Option<&[u8]>, String> {
    match find(array, "0")? {
        Some(Element::Document(document)) => Ok(Some(document)),
        Some(_) => Err("an array of something else than documents".to_owned()),
        None => Ok(None),
    }
}

/// Returns the bytes of a document's elements: the document without its length and its final NUL.
fn elements(mut document: &[u8]) -> Option<&[u8]> {
    let whole = document.len();
    let length = u32::from_le_bytes(cut_array(&mut document)?);
    match document.split_last() {
        Some((0, elements)) if length as usize == whole => Some(elements),
        _ => None,
    }
}

/// Takes the next element off `rest`, and returns its name and value. Returns `None` if its bytes
/// are broken, or its type is unknown.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Element<'a>)> {
    let [kind] = cut_array(rest)?;
    let name = cut_text(rest)?;
    let element = match kind {
        DOUBLE => Element::Double(f64::from_le_bytes(cut_array(rest)?)),
        TEXT => {
            let length = u32::from_le_bytes(cut_array(rest)?);
            Element::Text(cut(rest, length as usize)?.strip_suffix(b"\0")?)
        }
        DOCUMENT | ARRAY => {
            let length = u32::from_le_bytes(*rest.first_chunk()?);
            Element::Document(cut(rest, length as usize)?)
        }
        BINARY => {
            let length = u32::from_le_bytes(cut_array(rest)?);
            let [_subtype] = cut_array(rest)?;
            Element::Binary(cut(rest, length as usize)?)
        }
        BOOL => {
            let [truth] = cut_array(rest)?;
            Element::Bool(truth != 0)
        }
        INT32 => Element::Integer(i32::from_le_bytes(cut_array(rest)?).into()),
        INT64 => Element::Integer(i64::from_le_bytes(cut_array(rest)?)),
        NULL | UNDEFINED => Element::Other,
        OBJECT_ID => cut(rest, 12).map(|_| Element::Other)?,
        DATE | TIMESTAMP => cut(rest, 8).map(|_| Element::Other)?,
        _ => return None,
    };
    Some((name, element))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut buffer = Vec::new();
        push_document(&mut buffer, |document| {
            push_text(document, "text", b"fig");
            push_binary(document, "bytes", b"\0\x01");
            push_true(document, "true");
            push_int32(document, "small", -1);
            push_int64(document, "large", i64::MAX);
            push_inner(document, "inner", |inner| push_int32(inner, "x", 5));
            push_list(document, "list", |inner| push_int32(inner, "y", 6));
            // A double, a null, an object id and a date, as servers send them.
            document.extend_from_slice(b"\x01double\0");
            document.extend_from_slice(&2.0f64.to_le_bytes());
            document.extend_from_slice(b"\x0anull\0\x07id\0twelve bytes\x09date\0eight by");
            push_int32(document, "last", 7);
        });
        buffer
    }

    #[test]
    fn elements_are_found_by_name() {
        let document = sample();
        let element = |name| find(&document, name).unwrap().unwrap();
        assert_eq!(element("text"), Element::Text(b"fig"));
        assert_eq!(element("bytes"), Element::Binary(b"\0\x01"));
        assert_eq!((element("true"), element("null")), (Element::Bool(true), Element::Other));
        assert_eq!((element("small").integer(), element("last").integer()), (Some(-1), Some(7)));
        assert_eq!(element("large").integer(), Some(i64::MAX));
        assert_eq!((element("double").integer(), element("text").integer()), (Some(2), None));
        assert_eq!(Element::Double(0.5).integer(), None);
        let Element::Document(inner) = element("inner") else { panic!("a document") };
        assert_eq!(find(inner, "x").unwrap(), Some(Element::Integer(5)));
        let Element::Document(list) = element("list") else { panic!("an array") };
        let first = first_document(list).unwrap().unwrap();
        assert_eq!(find(first, "y").unwrap(), Some(Element::Integer(6)));
        assert_eq!(find(&document, "absent").unwrap(), None);
    }

    #[test]
    fn broken_documents_are_errors() {
        let document = sample();
        for length in 0..document.len() {
            assert!(find(&document[..length], "absent").is_err(), "cut at {length}");
        }
        for (index, byte) in document.iter().enumerate() {
            // No bytes may cause a panic.
            for other in [byte ^ 0x80, 0xff, 0] {
                let mut broken = document.clone();
                broken[index] = other;
                let _ = find(&broken, "last");
            }
        }
        assert!(find(b"\x05\0\0\0\x01", "x").is_err());
    }
}
