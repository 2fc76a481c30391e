//! The received bytes of a stream that were not taken yet, as items.
//!
//! **Cancel safety.** Bytes leave only when an item is taken. A waiting reader holds none, so giving up the
//! wait loses nothing, and the next [`Received::take`] of any kind continues where the last one ended.

use std::io;

use super::framing::{Found, Want};
use super::read_buffer::{LARGE, ReadBuffer};

/// The result of [`Received::take`].
#[derive(Debug)]
pub enum Taken<'a> {
    /// The item. It is taken, whether or not the caller uses it.
    Item(&'a [u8]),
    /// The stream ended before the item did. This is the rest, which is taken too.
    Rest(&'a [u8]),
    /// The item is longer than allowed: at least this many bytes. It stays.
    TooLong(usize),
    /// The item is not here yet.
    Nothing,
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
    pub(super) fn of(error: &io::Error) -> End {
        error.raw_os_error().map_or(End::Broken(error.kind()), End::Failed)
    }
}

/// Bytes in the order in which they came, and how far they were searched.
#[derive(Debug)]
pub struct Received {
    pub(super) buffer: ReadBuffer,
    /// How much of the buffer was searched without finding the current item's delimiter.
    pub(super) scanned: usize,
    pub(super) end: Option<End>,
    limit: usize,
    /// The most bytes that were here since the last rest.
    peak: usize,
}

impl Received {
    /// Creates an empty buffer. A line, or an item with another delimiter, has at most `limit` bytes.
    pub fn new(limit: usize) -> Received {
        Received { buffer: ReadBuffer::default(), scanned: 0, end: None, limit, peak: 0 }
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

    /// A new item is wanted: forgets how far the last search went.
    pub fn begin(&mut self) {
        self.scanned = 0;
    }

    /// Returns the item, if it is here.
    pub fn take(&mut self, want: &Want) -> Taken<'_> {
        let found = self.look(want);
        self.hand_out(found)
    }

    /// Whether `take` would return anything but `Nothing`.
    pub fn has(&mut self, want: &Want) -> bool {
        !matches!(self.look(want), Look::Nothing)
    }

    /// Receives once: what is there, or as much as there is room for. Returns how many bytes came, and whether
    /// that was all. Zero bytes mean the end of the stream.
    ///
    /// # Errors
    /// Those of the read. The failure is not noted: see [`Received::fail`].
    pub fn receive(&mut self, want: &Want, source: impl io::Read) -> io::Result<(usize, bool)> {
        let total = self.total(want);
        let (got, short) = self.buffer.fill(source, total)?;
        self.note(got);
        Ok((got, short))
    }

    /// Returns the room to receive into. Report the result with [`Received::came`].
    pub(super) fn room(&mut self, want: &Want) -> &mut [u8] {
        let total = self.total(want);
        self.buffer.room(total)
    }

    pub(super) fn came(&mut self, got: usize) {
        self.buffer.came(got);
        self.note(got);
    }

    /// How many bytes the buffer must hold, if that is a large number.
    fn total(&self, want: &Want) -> usize {
        match want.find(self.buffer.bytes(), &mut self.scanned.clone(), self.limit) {
            Found::More { total } if total > LARGE => total,
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

    /// Call this before a wait that may be long: gives back memory that was not needed since the last one.
    pub fn rest(&mut self) {
        self.buffer.shrink(std::mem::take(&mut self.peak));
    }

    pub(super) fn look(&mut self, want: &Want) -> Look {
        if matches!(want, Want::Line) {
            match self.buffer.indexed_line() {
                Some(len) if len > self.limit => return Look::TooLong(len),
                Some(len) => return Look::Item(0, len),
                None => self.scanned = self.scanned.max(self.buffer.known()),
            }
        }
        match want.find(self.buffer.bytes(), &mut self.scanned, self.limit) {
            Found::Item { skip, len } => Look::Item(skip, len),
            Found::TooLong { len } => Look::TooLong(len),
            Found::More { .. } if self.end.is_some() => Look::End,
            Found::More { .. } => Look::Nothing,
        }
    }

    pub(super) fn hand_out(&mut self, found: Look) -> Taken<'_> {
        match found {
            Look::Item(skip, len) => {
                self.scanned = 0;
                Taken::Item(self.buffer.take(skip, len))
            }
            Look::TooLong(len) => Taken::TooLong(len),
            Look::Nothing => Taken::Nothing,
            Look::End => match self.end {
                Some(End::Failed(errno)) => Taken::Failed(io::Error::from_raw_os_error(errno)),
                Some(End::Broken(kind)) => Taken::Failed(kind.into()),
                Some(End::Eof) | None => {
                    self.scanned = 0;
                    let len = self.buffer.len();
                    Taken::Rest(self.buffer.take(0, len))
                }
            },
        }
    }
}

/// The result of a look at the bytes. In two steps, because the returned bytes are borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    /// After so many bytes come those of the item.
    Item(usize, usize),
    TooLong(usize),
    Nothing,
    /// Nothing, and there never will be.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken<'a>(received: &'a mut Received, want: &Want) -> &'a [u8] {
        match received.take(want) {
            Taken::Item(bytes) | Taken::Rest(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn items_are_taken_one_after_the_other_and_an_end_after_them() {
        let mut received = Received::new(100);
        let mut source = &b"line\nabcdefrest"[..];
        assert!(matches!(received.take(&Want::Line), Taken::Nothing));
        assert_eq!(received.receive(&Want::Line, &mut source).unwrap(), (15, true));
        assert_eq!(taken(&mut received, &Want::Line), b"line\n");
        assert_eq!(taken(&mut received, &Want::Exact(6)), b"abcdef");
        assert!(!received.has(&Want::Exact(5)) && received.has(&Want::Some(5)));
        assert_eq!(received.receive(&Want::Exact(5), &mut source).unwrap(), (0, true));
        assert_eq!(taken(&mut received, &Want::Exact(5)), b"rest");
        assert_eq!(taken(&mut received, &Want::Line), b"");
    }

    #[test]
    fn what_came_before_a_failure_can_still_be_taken() {
        let mut received = Received::new(100);
        received.receive(&Want::All, &b"abc"[..]).unwrap();
        received.fail(&io::Error::from_raw_os_error(libc::ECONNRESET));
        assert_eq!(taken(&mut received, &Want::Some(2)), b"ab");
        for want in [Want::Exact(2), Want::All, Want::Line] {
            assert!(
                matches!(received.take(&want), Taken::Failed(error) if error.raw_os_error() == Some(libc::ECONNRESET))
            );
        }
        assert_eq!(taken(&mut received, &Want::Some(2)), b"c");
    }

    #[test]
    fn memory_that_large_items_needed_is_kept_while_they_come_and_given_back_after() {
        let mut received = Received::new(100);
        let large = vec![0; 200_000];
        for _ in 0..3 {
            let mut source = &large[..];
            while !received.has(&Want::Exact(large.len())) {
                received.receive(&Want::Exact(large.len()), &mut source).unwrap();
            }
            taken(&mut received, &Want::Exact(large.len()));
            received.rest();
            assert!(received.buffer.capacity() >= large.len());
        }
        for _ in 0..2 {
            received.receive(&Want::Exact(1), &[1][..]).unwrap();
            taken(&mut received, &Want::Exact(1));
            received.rest();
        }
        assert!(received.buffer.capacity() < 10_000);
    }
}
