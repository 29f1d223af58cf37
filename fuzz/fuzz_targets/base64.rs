//! Base64 keys: decoded bytes fit their buffer, and encoded bytes decode to themselves.

#![no_main]

use larder_protocol::base64;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut room = [0; base64::DECODED_KEY_MAX];
    let _ = base64::decode(data, &mut room);

    let key = &data[..data.len().min(base64::DECODED_KEY_MAX)];
    if key.is_empty() {
        return;
    }
    let mut encoded = vec![0; base64::encoded_len(key.len())];
    base64::encode(key, &mut encoded);
    let mut room = [0; base64::DECODED_KEY_MAX];
    assert_eq!(base64::decode(&encoded, &mut room), Some(key));
});
