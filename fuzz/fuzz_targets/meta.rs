//! Meta commands: flags are parsed or refused, and the parser reports no flag that the line does
//! not have. The first byte of an input chooses the verb; the other bytes are the line after the
//! verb.

#![no_main]

use larder_protocol::meta::Flags;
use larder_protocol::text::{Request, parse};
use larder_protocol::{Parse, base64};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [verb, line @ ..] = data else { return };
    let verb = [b"mg ", b"ms ", b"md ", b"ma ", b"me "][usize::from(*verb) % 5];
    let mut input = verb.to_vec();
    input.extend_from_slice(line);
    input.extend_from_slice(b"\r\n");
    let mut keys: Vec<&[u8]> = Vec::new();
    let (Parse::Request { request, .. } | Parse::NeedValue { request, .. }) =
        parse(&input, &mut keys)
    else {
        return;
    };
    let Request::Meta(meta) = request else { return };
    assert_eq!(keys, Vec::from_iter(meta.plain_key()));
    match Flags::parse(&meta) {
        Ok(flags) => {
            for letter in b'!'..=b'~' {
                if flags.has(letter) {
                    assert!(meta.tokens().any(|token| token[0] == letter), "flag out of nowhere");
                }
            }
            if meta.base64 {
                let mut room = [0; base64::DECODED_KEY_MAX];
                let _ = base64::decode(meta.key, &mut room);
            }
        }
        Err(reply) => assert!(reply.ends_with("\r\n")),
    }
});
