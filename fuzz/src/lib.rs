//! Code shared by the fuzz targets.

/// Cuts a stream into packets of two alternating lengths. The first two bytes of the input choose
/// the lengths; the rest is the stream. Returns the stream and its packets, or `None` if the input
/// is shorter than two bytes. An empty stream has one packet, which is empty.
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
