//! The bytes of a simulated device, in pages that copies share until one of them changes. A
//! simulation takes thousands of images of nearly identical devices.

use std::sync::Arc;

pub(super) const PAGE: usize = 4096;

/// The content of a page.
pub(super) type Page = Arc<[u8; PAGE]>;

/// The content of a device. A page that was never written is absent and reads as zeros.
#[derive(Clone)]
pub(super) struct Image {
    pages: Vec<Option<Page>>,
}

impl Image {
    /// Creates an image of zeros; `size` is rounded up to whole pages.
    pub(super) fn new(size: u64) -> Image {
        let mut image = Image { pages: Vec::new() };
        image.grow(size);
        image
    }

    /// Adds zeros up to `size`, rounded up to whole pages.
    pub(super) fn grow(&mut self, size: u64) {
        self.pages.resize((size as usize).div_ceil(PAGE), None);
    }

    /// Removes the bytes after `size`, which is a multiple of the page size.
    pub(super) fn truncate(&mut self, size: u64) {
        self.pages.truncate(size as usize / PAGE);
    }

    pub(super) fn size(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Reads a range, which must lie inside the image.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        let mut done = 0;
        for (page, start, length) in pieces(offset, buffer.len()) {
            let piece = &mut buffer[done..done + length];
            match &self.pages[page] {
                Some(bytes) => piece.copy_from_slice(&bytes[start..start + length]),
                None => piece.fill(0),
            }
            done += length;
        }
    }

    /// Writes a range, which must lie inside the image.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        for (page, start, length) in pieces(offset, bytes.len()) {
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE]));
            let piece = &bytes[done..done + length];
            Arc::make_mut(page)[start..start + length].copy_from_slice(piece);
            done += length;
        }
    }

    /// Returns a page's content, shared with the image.
    pub(super) fn page(&mut self, page: u64) -> Page {
        Arc::clone(self.pages[page as usize].get_or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Replaces a page's content.
    pub(super) fn put_page(&mut self, page: u64, content: Page) {
        self.pages[page as usize] = Some(content);
    }

    /// Inverts one bit of the byte at `offset`, which must lie inside the image.
    pub(super) fn flip(&mut self, offset: u64, bit: u32) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &[byte[0] ^ (1 << (bit % 8))]);
    }
}

/// Splits a range of bytes into (page, start in it, length).
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (mut at, end) = (offset as usize, offset as usize + length);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let start = at % PAGE;
            let piece = (PAGE - start).min(end - at);
            let found = (at / PAGE, start, piece);
            at += piece;
            found
        })
    })
}
