//! Finds servers that acknowledge an overwrite but keep the old value. A load cannot detect this:
//! it stores the same value of a key each time.

use crate::generator::Load;
use crate::lab::record::Point;
use crate::workload::{Shape, Verb};
use crate::{Error, Result};

/// The largest number of keys that are overwritten.
const KEYS: u64 = 3000;

/// Overwrites some keys of the shape with other values, reads them, and restores them. If a value
/// is stale or missing, the point becomes void.
///
/// # Errors
/// Returns the errors of [`Load::run`]. However, [`Error::Void`] of the overwrites or the reads
/// makes the point void instead.
pub(super) fn checked(point: Point, load: &Load, shape: &Shape) -> Result<Point> {
    let old = Shape { keys: shape.keys.min(KEYS), ..shape.clone() };
    let new = Shape { salt: old.salt + 1, ..old.clone() };
    let load = Load { verify: true, ..load.clone() };
    let pass = |shape: &Shape, verb| load.run_once_through(shape, verb)?.without_errors();
    let result = pass(&new, Verb::Set).and_then(|_| pass(&new, Verb::Get));
    pass(&old, Verb::Set)?;
    let why = match result {
        Ok(read) if read.total.hits == new.keys => {
            return Ok(point.with("overwrites_kept", new.keys as f64));
        }
        Ok(read) => format!("{} of {} overwritten items were lost", read.total.misses, new.keys),
        Err(Error::Void(why)) => format!("an acknowledged overwrite was not kept: {why}"),
        Err(error) => return Err(error),
    };
    Ok(Point { void: Some(why), ..point })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use larder_client::Address;

    use super::*;
    use crate::lab::record::{Figures, PointId};

    /// Serves gets and sets, one connection after the other, until `ends` is true. Acknowledges
    /// every set, but does not store the new value if the key exists and `keeps` returns false for
    /// it.
    fn serve(listener: &TcpListener, ends: &AtomicBool, keeps: impl Fn(&str) -> bool) {
        let mut items: HashMap<String, Vec<u8>> = HashMap::new();
        while let Ok((mut output, _)) = listener.accept() {
            if ends.load(Relaxed) {
                return;
            }
            let mut input = BufReader::new(output.try_clone().unwrap());
            let mut line = String::new();
            while input.read_line(&mut line).unwrap_or(0) > 0 {
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                let key = words[1].to_owned();
                let answer = if words[0] == "get" {
                    let value = &items[&key];
                    [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), value, b"END\r\n"]
                        .concat()
                } else {
                    let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                    input.read_exact(&mut value).unwrap();
                    if !items.contains_key(&key) || keeps(&key) {
                        items.insert(key, value);
                    }
                    b"STORED\r\n".to_vec()
                };
                // The map holds values with their line ends. The announced length must not
                // include the line end.
                let answer = String::from_utf8(answer).unwrap();
                let answer = answer.replacen(" 0 52\r\n", " 0 50\r\n", 1);
                output.write_all(answer.as_bytes()).unwrap();
                line.clear();
            }
        }
    }

    fn check(keeps: impl Fn(&str) -> bool + Send) -> Point {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, &ends, keeps));
            let load = Load { connections: 1, ..Load::new(Address::Tcp(address.to_string())) };
            let shape = Shape { keys: 20, ..Shape::default() };
            let filled = load.run_once_through(&shape, Verb::Set);
            let point_id = PointId { system: "s".into(), case: "c".into(), x: None, round: 1 };
            let point = checked(Point::new(point_id, Figures::default()), &load, &shape);
            // The old values must be readable: they were restored, or were never replaced.
            let load = Load { verify: true, ..load };
            let restored = load.run_once_through(&shape, Verb::Get);
            ends.store(true, Relaxed);
            std::net::TcpStream::connect(address).unwrap();
            filled.and(restored).unwrap();
            point.unwrap()
        })
    }

    #[test]
    fn a_dropped_overwrite_makes_the_point_void() {
        let right = check(|_| true);
        assert_eq!(right.void, None);
        assert!((right.extra["overwrites_kept"] - 20.0).abs() < 1e-9);
        let why = check(|key| !key.ends_with('7')).void.unwrap();
        assert!(why.contains("an acknowledged overwrite was not kept: 2 wrong answers"), "{why}");
    }
}
