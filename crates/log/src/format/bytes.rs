//! Reads and writes fields at fixed offsets. An offset outside the buffer panics. Callers use
//! constant offsets in buffers of fixed size, so no data on a device can cause this panic.

/// Writes `field` at `at`.
#[inline]
pub(super) fn put<const N: usize>(into: &mut [u8], at: usize, field: [u8; N]) {
    into[at..at + N].copy_from_slice(&field);
}

/// Returns the `N` bytes at `at`.
#[inline]
pub(super) fn get<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&from[at..at + N]);
    field
}

/// Returns the little-endian number in the two bytes at `at`.
#[inline]
pub(super) fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(get(from, at))
}

/// Returns the little-endian number in the four bytes at `at`.
#[inline]
pub(super) fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(from, at))
}

/// Returns the little-endian number in the eight bytes at `at`.
#[inline]
pub(super) fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(from, at))
}

/// Returns true if all bytes are zero.
pub(super) fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
