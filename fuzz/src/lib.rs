//! Code shared by the fuzz targets.

/// Cuts a stream into packets of two alternating lengths, chosen by the first two bytes of the
/// input. Returns at least one packet, which is empty for an empty stream.
pub fn packets(input: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let [first, second, stream @ ..] = input else { return None };
    let lengths = [usize::from(*first) + 1, usize::from(*second) * 8 + 1];
    let mut packets = Vec::new();
    let mut rest = stream;
    for length in lengths.into_iter().cycle() {
        let (packet, tail) = rest.split_at(length.min(rest.len()));
        packets.push(packet);
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    Some((stream, packets))
}
