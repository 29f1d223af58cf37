//! MongoDB's protocol: commands and their replies as OP_MSG, and the handshake as OP_QUERY, which
//! servers of all versions understand.

use std::io::Write;

use larder_client::{Address, Reply, Stream};

use super::bson::{
    Element, find, first_document, push_binary, push_document, push_inner, push_int32, push_int64,
    push_list, push_text, push_true,
};
use super::caller::open;
use super::messages::{Messages, cut, cut_array, read_message};
use super::{Asker, DATABASE, Replies, Wire, asked};
use crate::workload::Verb;
use crate::{Error, Result};

const OP_REPLY: u32 = 1;
const OP_QUERY: u32 = 2004;
const OP_MSG: u32 = 2013;
/// The smallest `maxWireVersion` of servers that understand OP_MSG. MongoDB 3.6 was the first of
/// them.
const OLDEST: i64 = 6;
/// The code of the error that a collection exists already.
const NAMESPACE_EXISTS: i64 = 48;

/// MongoDB and other servers with its protocol, without passwords. Keys are the `_id` of documents.
#[derive(Debug)]
pub(crate) struct Mongo;

impl Wire for Mongo {
    /// Creates the collections. Otherwise the first write to a collection would create it, and some
    /// servers lose writes if several clients do so at the same time.
    fn prepare(&self, server: &Address) -> Result<()> {
        let socket = open(server)?;
        self.greet(&socket)?;
        for collection in ["cache", "counters"] {
            let mut message = Vec::new();
            push_command(&mut message, "create", collection, |_| {});
            send(&socket, &message)?;
            let (header, body) = read_message(&socket, body_length)?;
            let document = reply_document(&header, &body).map_err(Error::Server)?;
            match failure(document).map_err(Error::Server)? {
                Some(failure) if failure.code != Some(NAMESPACE_EXISTS) => {
                    return Err(Error::server(format!("the server reports: {}", failure.text)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn greet(&self, socket: &Stream) -> Result<()> {
        let mut message = Vec::new();
        push_message(&mut message, OP_QUERY, |body| {
            // No flags.
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(b"admin.$cmd\0");
            // Skip no documents, and return one.
            body.extend_from_slice(&0i32.to_le_bytes());
            body.extend_from_slice(&(-1i32).to_le_bytes());
            push_document(body, |document| push_int32(document, "isMaster", 1));
        });
        send(socket, &message)?;
        let (header, body) = read_message(socket, body_length)?;
        let document = greeting(&header, &body)
            .ok_or_else(|| Error::server("the server's greeting is not of MongoDB's protocol"))?;
        let version = find(document, "maxWireVersion").map_err(Error::Server)?;
        match version.and_then(Element::integer) {
            Some(version) if version >= OLDEST => Ok(()),
            version => Err(Error::server(format!(
                "the server's protocol is too old: {version:?} instead of at least {OLDEST}"
            ))),
        }
    }

    #[inline]
    fn push(&self, verb: Verb, key: &[u8], value: &[u8], buffer: &mut Vec<u8>) {
        match verb {
            Verb::Get => push_command(buffer, "find", "cache", |command| {
                push_inner(command, "filter", |filter| push_text(filter, "_id", key));
                push_int32(command, "limit", 1);
                push_true(command, "singleBatch");
            }),
            Verb::Set => push_upsert(buffer, "cache", key, |set| push_binary(set, "value", value)),
            Verb::SetCounter => {
                push_upsert(buffer, "counters", key, |set| push_int64(set, "value", 0));
            }
            Verb::Incr => push_command(buffer, "findAndModify", "counters", |command| {
                push_inner(command, "query", |query| push_text(query, "_id", key));
                push_inner(command, "update", |update| {
                    push_inner(update, "$inc", |inc| push_int64(inc, "value", 1));
                });
                push_true(command, "upsert");
                push_true(command, "new");
            }),
            _ => {}
        }
    }

    fn replies(&self) -> Box<dyn Replies> {
        Box::new(MongoReplies { messages: Messages::new(body_length) })
    }
}

/// Appends an update that sets fields of the document of a key, or creates it.
#[inline]
fn push_upsert(
    buffer: &mut Vec<u8>,
    collection: &str,
    key: &[u8],
    push_fields: impl FnOnce(&mut Vec<u8>),
) {
    push_command(buffer, "update", collection, |command| {
        push_list(command, "updates", |update| {
            push_inner(update, "q", |query| push_text(query, "_id", key));
            push_inner(update, "u", |document| {
                push_inner(document, "$set", push_fields);
            });
            push_true(update, "upsert");
        });
    });
}

/// Appends a command on a collection, with the fields that `push_fields` appends.
#[inline]
fn push_command(
    buffer: &mut Vec<u8>,
    name: &str,
    collection: &str,
    push_fields: impl FnOnce(&mut Vec<u8>),
) {
    push_message(buffer, OP_MSG, |body| {
        // No flags, and one section: a document.
        body.extend_from_slice(&[0; 5]);
        push_document(body, |command| {
            push_text(command, name, collection.as_bytes());
            push_fields(command);
            push_text(command, "$db", DATABASE.as_bytes());
        });
    });
}

/// Appends a message with the body that `push_body` appends. A connection's replies come in the
/// order of its requests, so the request ids stay 0.
#[inline]
fn push_message(buffer: &mut Vec<u8>, operation: u32, push_body: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 12]);
    buffer.extend_from_slice(&operation.to_le_bytes());
    push_body(buffer);
    let length = (buffer.len() - start) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn send(mut socket: &Stream, bytes: &[u8]) -> Result<()> {
    socket.write_all(bytes).map_err(|e| Error::io("cannot write to the server", e))
}

/// Reads the length of a message's body. The length in the header includes the header.
fn body_length(header: &[u8; 16]) -> Option<usize> {
    let length = u32::from_le_bytes(*header.first_chunk()?) as usize;
    length.checked_sub(header.len())
}

fn operation(header: &[u8; 16]) -> u32 {
    let [.., a, b, c, d] = *header;
    u32::from_le_bytes([a, b, c, d])
}

/// Returns the document of the server's reply to the handshake, or `None` if the reply is not an
/// OP_REPLY.
fn greeting<'a>(header: &[u8; 16], mut body: &'a [u8]) -> Option<&'a [u8]> {
    if operation(header) != OP_REPLY {
        return None;
    }
    // Skips the flags, the cursor, the position in the cursor and the number of documents.
    cut(&mut body, 20)?;
    Some(body)
}

/// Returns the document of an OP_MSG.
fn reply_document<'a>(
    header: &[u8; 16],
    mut body: &'a [u8],
) -> std::result::Result<&'a [u8], String> {
    if operation(header) != OP_MSG {
        return Err(format!("a message of the operation {}", operation(header)));
    }
    // After the flags, which this client ignores, a reply has one section: a document.
    let _flags: Option<[u8; 4]> = cut_array(&mut body);
    match cut_array(&mut body) {
        Some([0u8]) => Ok(body),
        _ => Err("a message without a document".to_owned()),
    }
}

/// An error that the server sent.
struct Refusal {
    text: String,
    code: Option<i64>,
}

/// Returns the error in a reply, if it has one.
fn failure(document: &[u8]) -> std::result::Result<Option<Refusal>, String> {
    let described = |document| -> std::result::Result<Refusal, String> {
        let code = find(document, "code")?.and_then(Element::integer);
        let text = match find(document, "errmsg")? {
            Some(Element::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => "an error without a text".to_owned(),
        };
        Ok(Refusal { text, code })
    };
    if find(document, "ok")?.and_then(Element::integer) != Some(1) {
        return described(document).map(Some);
    }
    match find(document, "writeErrors")? {
        Some(Element::Document(errors)) => first_document(errors)?.map(described).transpose(),
        _ => Ok(None),
    }
}

#[derive(Debug)]
struct MongoReplies {
    messages: Messages<16>,
}

impl Replies for MongoReplies {
    fn feed(&mut self, bytes: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
        self.messages.feed(bytes, |header, body| {
            let document = reply_document(header, body)?;
            reply(asked(asker)?, document, asker)
        })
    }
}

fn reply(verb: Verb, document: &[u8], asker: &mut dyn Asker) -> std::result::Result<(), String> {
    if let Some(failure) = failure(document)? {
        asker.reply(Reply::Error(failure.text.as_bytes()), 0);
        return Ok(());
    }
    match verb {
        Verb::Get => match found(document)? {
            None => asker.reply(Reply::End, 0),
            Some(value) => {
                asker.value(b"", value.len());
                asker.body(0, value);
                asker.reply(Reply::End, 1);
            }
        },
        Verb::Set | Verb::SetCounter => match find(document, "n")?.and_then(Element::integer) {
            Some(1) => asker.reply(Reply::Stored, 0),
            changed => return Err(format!("{changed:?} documents changed instead of one")),
        },
        _ => {
            let Some(Element::Document(counter)) = find(document, "value")? else {
                return Err("no counter in a reply".to_owned());
            };
            let number = find(counter, "value")?.and_then(Element::integer);
            let number = number.and_then(|number| u64::try_from(number).ok());
            asker.reply(Reply::Number(number.ok_or("a counter without a number")?), 0);
        }
    }
    Ok(())
}

/// Returns the value in the reply to a find, or `None` if the find matched no document.
fn found(document: &[u8]) -> std::result::Result<Option<&[u8]>, String> {
    let Some(Element::Document(cursor)) = find(document, "cursor")? else {
        return Err("no cursor in a reply".to_owned());
    };
    let Some(Element::Document(batch)) = find(cursor, "firstBatch")? else {
        return Err("no batch in a reply".to_owned());
    };
    let Some(document) = first_document(batch)? else { return Ok(None) };
    match find(document, "value")? {
        Some(Element::Binary(value)) => Ok(Some(value)),
        _ => Err("a document without a value".to_owned()),
    }
}
