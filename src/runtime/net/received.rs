//! The received bytes of a stream that were not taken yet, as items.
//!
//! **Cancel safety.** Bytes leave only when an item is taken. A waiting reader holds none, so giving up the
//! wait loses nothing, and the next [`Received::take`] of any kind continues where the last one ended.

use std::io;

use super::read_buffer::{LARGE, ReadBuffer};
use crate::framing::{ItemEnd, ReadRequest, TooLong};

/// The result of [`Received::take`].
#[derive(Debug)]
pub enum ReadProgress<T> {
    /// The item. It is taken, whether or not the caller uses it.
    Item(T),
    /// The stream ended before the item did. This is the rest, which is taken too.
    Rest(T),
    /// The item is longer than allowed. It stays where it is.
    TooLong(TooLong),
    /// The item is not here yet.
    Pending,
    /// The stream has failed. Bytes from before the failure can still be taken.
    Failed(io::Error),
}

/// How a stream ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Eof,
    Failed(i32),
    Broken(io::ErrorKind),
}

impl End {
    fn of(error: &io::Error) -> End {
        error.raw_os_error().map_or(End::Broken(error.kind()), End::Failed)
    }
}

/// Bytes in the order in which they came, and how far they were searched.
#[derive(Debug)]
pub struct Received {
    pub(super) buffer: ReadBuffer,
    /// How much of the buffer was searched without finding the current item's delimiter.
    pub(super) searched: usize,
    pub(super) end: Option<End>,
    limit: usize,
    /// The most bytes that were here since the last `give_back_memory`.
    peak: usize,
}

impl Received {
    /// Creates an empty buffer. A line, or an item with another delimiter, has at most `limit` bytes.
    pub fn new(limit: usize) -> Received {
        Received { buffer: ReadBuffer::default(), searched: 0, end: None, limit, peak: 0 }
    }

    /// The limit for lines.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many bytes are here.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether no byte is here.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Whether the stream has ended and everything before its end was taken.
    pub fn at_eof(&self) -> bool {
        self.is_empty() && matches!(self.end, Some(End::Eof))
    }

    /// Call this before looking for a new item. It forgets how far the last search went.
    pub fn begin(&mut self) {
        self.searched = 0;
    }

    /// Returns the item, if it is here.
    pub fn take(&mut self, request: &ReadRequest) -> ReadProgress<&[u8]> {
        let found = self.find(request);
        self.take_found(found)
    }

    /// As [`Received::take`], for a caller that may fail to keep what was taken: then nothing was taken.
    pub fn try_take<T, E>(
        &mut self,
        request: &ReadRequest,
        keep: impl FnOnce(ReadProgress<&[u8]>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (start, searched) = (self.buffer.start(), self.searched);
        let kept = keep(self.take(request));
        if kept.is_err() {
            self.buffer.put_back(start);
            self.searched = searched;
        }
        kept
    }

    /// Whether `take` would return anything but [`ReadProgress::Pending`].
    pub fn has(&mut self, request: &ReadRequest) -> bool {
        let found = self.find(request);
        !self.is_pending(found)
    }

    /// Drops what a line that is too long has here: up to its end, or everything.
    pub fn discard(&mut self, line: TooLong) {
        self.searched = 0;
        let len = line.end.unwrap_or(self.buffer.len()).min(self.buffer.len());
        self.buffer.take(0, len);
    }

    /// Receives once: what is there, or as much as there is room for. Returns how many bytes came, and whether
    /// the source is exhausted. Zero bytes mean the end of the stream.
    ///
    /// # Errors
    /// Those of the read. The failure is not noted: see [`Received::fail`].
    pub fn receive(&mut self, request: &ReadRequest, source: impl io::Read) -> io::Result<(usize, bool)> {
        self.fill(self.total(request), source)
    }

    /// As `receive`, for an item that needs `total` bytes if that is a large number.
    pub(super) fn fill(&mut self, total: usize, source: impl io::Read) -> io::Result<(usize, bool)> {
        let (got, short) = self.buffer.fill(source, total)?;
        self.note(got);
        Ok((got, short))
    }

    /// Returns the room to receive into. Report the result with [`Received::came`].
    ///
    /// # Errors
    /// `OutOfMemory`; nothing has changed then.
    pub(super) fn room(&mut self, request: &ReadRequest) -> io::Result<&mut [u8]> {
        let total = self.total(request);
        self.buffer.room(total)
    }

    pub(super) fn came(&mut self, got: usize) {
        self.buffer.came(got);
        self.note(got);
    }

    /// How many bytes the buffer must hold, if that is a large number.
    pub(super) fn total(&self, request: &ReadRequest) -> usize {
        match request.find(self.buffer.bytes(), &mut self.searched.clone(), self.limit) {
            ItemEnd::Missing { total } if total > LARGE => total,
            _ => 0,
        }
    }

    fn note(&mut self, got: usize) {
        self.peak = self.peak.max(self.buffer.len());
        if got == 0 {
            self.end = Some(End::Eof);
        }
    }

    /// Notes that nothing more will come, because of `error`.
    pub fn fail(&mut self, error: &io::Error) {
        self.end = Some(End::of(error));
    }

    /// Gives back memory that was not needed since the last call. Call this before a wait that may be long.
    pub fn give_back_memory(&mut self) {
        self.buffer.shrink(std::mem::take(&mut self.peak));
    }

    /// Finds where the item ends. [`Received::take_found`] then takes it. These are two steps, because what is
    /// taken is borrowed.
    pub(super) fn find(&mut self, request: &ReadRequest) -> ItemEnd {
        if matches!(request, ReadRequest::Line) {
            match self.buffer.indexed_line() {
                Some(end) if end - 1 > self.limit => {
                    return ItemEnd::TooLong(TooLong { consumed: end - 1, end: Some(end) });
                }
                Some(len) => return ItemEnd::Found { skip: 0, len },
                None => self.searched = self.searched.max(self.buffer.known()),
            }
        }
        request.find(self.buffer.bytes(), &mut self.searched, self.limit)
    }

    /// Whether more bytes may still change what was found.
    pub(super) fn is_pending(&self, found: ItemEnd) -> bool {
        matches!(found, ItemEnd::Missing { .. }) && self.end.is_none()
    }

    pub(super) fn take_found(&mut self, found: ItemEnd) -> ReadProgress<&[u8]> {
        match found {
            ItemEnd::Found { skip, len } => {
                self.searched = 0;
                ReadProgress::Item(self.buffer.take(skip, len))
            }
            ItemEnd::TooLong(item) => ReadProgress::TooLong(item),
            ItemEnd::Missing { .. } => match self.end {
                None => ReadProgress::Pending,
                Some(End::Failed(errno)) => ReadProgress::Failed(io::Error::from_raw_os_error(errno)),
                Some(End::Broken(kind)) => ReadProgress::Failed(kind.into()),
                Some(End::Eof) => {
                    self.searched = 0;
                    let len = self.buffer.len();
                    ReadProgress::Rest(self.buffer.take(0, len))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken<'a>(received: &'a mut Received, request: &ReadRequest) -> &'a [u8] {
        match received.take(request) {
            ReadProgress::Item(bytes) | ReadProgress::Rest(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn items_are_taken_one_after_the_other_and_an_end_after_them() {
        let mut received = Received::new(100);
        let mut source = &b"line\nabcdefrest"[..];
        assert!(matches!(received.take(&ReadRequest::Line), ReadProgress::Pending));
        assert_eq!(received.receive(&ReadRequest::Line, &mut source).unwrap(), (15, true));
        assert_eq!(taken(&mut received, &ReadRequest::Line), b"line\n");
        assert_eq!(taken(&mut received, &ReadRequest::Exact(6)), b"abcdef");
        assert!(!received.has(&ReadRequest::Exact(5)) && received.has(&ReadRequest::Some(5)));
        assert_eq!(received.receive(&ReadRequest::Exact(5), &mut source).unwrap(), (0, true));
        assert_eq!(taken(&mut received, &ReadRequest::Exact(5)), b"rest");
        assert_eq!(taken(&mut received, &ReadRequest::Line), b"");
    }

    #[test]
    fn what_came_before_a_failure_can_still_be_taken() {
        let mut received = Received::new(100);
        received.receive(&ReadRequest::All, &b"abc"[..]).unwrap();
        received.fail(&io::Error::from_raw_os_error(libc::ECONNRESET));
        assert_eq!(taken(&mut received, &ReadRequest::Some(2)), b"ab");
        for request in [ReadRequest::Exact(2), ReadRequest::All, ReadRequest::Line] {
            assert!(
                matches!(received.take(&request), ReadProgress::Failed(error) if error.raw_os_error() == Some(libc::ECONNRESET))
            );
        }
        assert_eq!(taken(&mut received, &ReadRequest::Some(2)), b"c");
    }

    #[test]
    fn memory_that_large_items_needed_is_kept_while_they_come_and_given_back_after() {
        let mut received = Received::new(100);
        let large = vec![0; 200_000];
        for _ in 0..3 {
            let mut source = &large[..];
            while !received.has(&ReadRequest::Exact(large.len())) {
                received.receive(&ReadRequest::Exact(large.len()), &mut source).unwrap();
            }
            taken(&mut received, &ReadRequest::Exact(large.len()));
            received.give_back_memory();
            assert!(received.buffer.capacity() >= large.len());
        }
        for _ in 0..2 {
            received.receive(&ReadRequest::Exact(1), &[1][..]).unwrap();
            taken(&mut received, &ReadRequest::Exact(1));
            received.give_back_memory();
        }
        assert!(received.buffer.capacity() < 10_000);
    }
}
