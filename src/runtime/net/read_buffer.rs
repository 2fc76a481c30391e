//! A buffer of received bytes, with room before and behind them.

use std::io::{self, Read};

use crate::memory::{grow, zeroed};

/// The first size of a buffer. It is small, so that 10,000 idle connections cost little.
const SMALL: usize = 4 * 1024;
/// The size up to which a buffer grows, unless one item needs more.
pub(super) const LARGE: usize = 256 * 1024;

/// The bytes are `data[start..end]`. All of `data` is initialised, once.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    data: Vec<u8>,
    start: usize,
    end: usize,
    /// The positions behind every `\n` in `start..indexed`, in order, from `ends[next]` on.
    ends: Vec<u32>,
    next: usize,
    indexed: usize,
    /// The last read filled the whole room.
    filled: bool,
}

impl ReadBuffer {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.data.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    /// Takes the first `skip + len` bytes, and returns the last `len` of them.
    pub(super) fn take(&mut self, skip: usize, len: usize) -> &[u8] {
        let from = self.start + skip;
        self.start = from + len;
        &self.data[from..self.start]
    }

    /// Where the bytes begin, for [`ReadBuffer::put_back`].
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Undoes what was taken since the bytes began at `start`. Nothing else may have happened meanwhile.
    pub(super) fn put_back(&mut self, start: usize) {
        self.start = start;
    }

    /// Reads once into the room behind the bytes. Returns how many bytes came, and whether the source is
    /// exhausted.
    pub(super) fn fill(&mut self, mut source: impl Read, total: usize) -> io::Result<(usize, bool)> {
        let room = self.room(total)?;
        let (wanted, got) = (room.len(), source.read(room)?);
        self.came(got);
        Ok((got, got < wanted))
    }

    /// Returns the room to read into, as `fill` does. Report the result with [`ReadBuffer::came`].
    ///
    /// # Errors
    /// `OutOfMemory`; nothing has changed then.
    pub(super) fn room(&mut self, total: usize) -> io::Result<&mut [u8]> {
        self.make_room(total)?;
        Ok(&mut self.data[self.end..])
    }

    pub(super) fn came(&mut self, got: usize) {
        let wanted = self.data.len() - self.end;
        self.end += got.min(wanted);
        self.filled = got >= wanted;
    }

    /// Makes room for at least one more byte, and later for `total` in all. The buffer grows with the received
    /// bytes, so an announced length alone costs no memory.
    fn make_room(&mut self, total: usize) -> io::Result<()> {
        if self.is_empty() {
            self.rewind();
        }
        let (capacity, len) = (self.data.len(), self.len());
        let mut wanted = capacity.max(if self.filled { (capacity * 4).min(LARGE) } else { SMALL });
        if len > capacity / 2 {
            wanted = wanted.max(len * 2);
        }
        let total = total.min(len * 2 + LARGE);
        if total > capacity - headroom(capacity) {
            wanted = wanted.max(total + SMALL);
        }
        if wanted > capacity {
            self.reallocate(wanted)?;
        } else if capacity - self.end < capacity / 4 {
            let start = headroom(capacity);
            self.data.copy_within(self.start..self.end, start);
            self.moved(start);
        }
        Ok(())
    }

    fn reallocate(&mut self, capacity: usize) -> io::Result<()> {
        let start = headroom(capacity);
        let mut data = zeroed(capacity)?;
        data[start..start + self.len()].copy_from_slice(self.bytes());
        self.data = data;
        self.moved(start);
        Ok(())
    }

    /// The bytes were moved to `start`.
    fn moved(&mut self, start: usize) {
        let len = self.len();
        let shift = |position: usize| position + start - self.start;
        let (indexed, from) = (self.indexed.max(self.start), self.start);
        self.ends.drain(..self.next);
        self.next = 0;
        self.ends.retain(|end| *end as usize > from);
        for end in &mut self.ends {
            *end = shift(*end as usize) as u32;
        }
        self.indexed = shift(indexed);
        self.start = start;
        self.end = start + len;
    }

    /// Makes it empty, with all the room behind the headroom.
    fn rewind(&mut self) {
        self.start = headroom(self.data.len());
        self.end = self.start;
        self.ends.clear();
        (self.next, self.indexed) = (0, 0);
    }

    /// Puts the rest of `earlier` in front, and leaves `earlier` empty.
    ///
    /// # Errors
    /// `OutOfMemory`; nothing has changed then.
    pub(super) fn prepend(&mut self, earlier: &mut ReadBuffer) -> io::Result<()> {
        if earlier.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            std::mem::swap(self, earlier);
        } else if earlier.len() <= self.start {
            let start = self.start - earlier.len();
            self.data[start..self.start].copy_from_slice(earlier.bytes());
            self.start = start;
            self.forget_lines();
        } else {
            // The rest is large: append the later bytes to it.
            let total = earlier.len() + self.len();
            earlier.forget_lines();
            if earlier.start + total > earlier.data.len() {
                earlier.reallocate((total + SMALL).next_power_of_two())?;
            }
            let end = earlier.end + self.len();
            earlier.data[earlier.end..end].copy_from_slice(self.bytes());
            earlier.end = end;
            std::mem::swap(self, earlier);
        }
        earlier.rewind();
        Ok(())
    }

    /// Drops the line index, because it is no longer complete.
    fn forget_lines(&mut self) {
        self.ends.clear();
        (self.next, self.indexed) = (0, 0);
    }

    /// Indexes the ends of lines in the bytes since the last call.
    pub(super) fn index_lines(&mut self) {
        let mut from = self.indexed.max(self.start);
        while let Some(at) = crate::framing::position(&self.data[from..self.end], b"\n") {
            from += at + 1;
            // Buffers of more than 4 GiB have no index, nor have those whose index finds no memory.
            let (Ok(end), Ok(())) = (u32::try_from(from), grow(&mut self.ends, 1)) else {
                return self.forget_lines();
            };
            self.ends.push(end);
        }
        self.indexed = self.end;
    }

    /// Returns the length of the first line with its end, if the index knows it.
    pub(super) fn indexed_line(&mut self) -> Option<usize> {
        while let Some(end) = self.ends.get(self.next) {
            if *end as usize > self.start {
                return Some(*end as usize - self.start);
            }
            self.next += 1;
        }
        None
    }

    /// How many bytes at the front are known to hold no end of a line, after `indexed_line` found none.
    pub(super) fn known(&self) -> usize {
        self.indexed.saturating_sub(self.start)
    }

    /// Gives back memory that the stream has not needed recently.
    pub(super) fn shrink(&mut self, last: usize) {
        if self.is_empty() && self.data.len() > 4 * SMALL && last < self.data.len() / 8 {
            *self = ReadBuffer::default();
        }
    }
}

/// The room in front of the bytes. `prepend` puts the rest of an earlier buffer there, which is mostly part of
/// a line.
fn headroom(capacity: usize) -> usize {
    (capacity / 16).min(SMALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Action {
        Fill(Vec<u8>),
        Take(usize),
        Line,
        /// The rest goes in front of the next bytes, as when two buffers are swapped.
        Prepend(Vec<u8>),
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n')], 0..9000)
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            bytes().prop_map(Action::Fill),
            (0usize..9000).prop_map(Action::Take),
            Just(Action::Line),
            bytes().prop_map(Action::Prepend),
        ]
    }

    /// Reads all of `data`, and indexes if `index` says so.
    fn fill(buffer: &mut ReadBuffer, mut data: &[u8], index: bool) {
        while !data.is_empty() {
            assert!(buffer.fill(&mut data, 0).unwrap().0 > 0, "there was no room");
            if index {
                buffer.index_lines();
            }
        }
    }

    proptest! {
        /// Whatever is done to it, a buffer returns the bytes that went in, in order, and finds the same lines.
        #[test]
        #[cfg_attr(miri, ignore = "it compares megabytes")]
        fn a_buffer_is_a_queue_of_bytes(actions in proptest::collection::vec(action(), 0..40), index in any::<bool>()) {
            let mut buffer = ReadBuffer::default();
            let mut model = Vec::new();
            for action in actions {
                match action {
                    Action::Fill(data) => {
                        fill(&mut buffer, &data, index);
                        model.extend(data);
                    }
                    Action::Take(len) => {
                        let len = len.min(model.len());
                        let expected: Vec<u8> = model.drain(..len).collect();
                        prop_assert_eq!(buffer.take(0, len), &expected[..]);
                    }
                    Action::Line => {
                        let expected = model.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
                        let known = buffer.indexed_line();
                        let found = known.or_else(|| {
                            let from = buffer.known();
                            let at = crate::framing::position(&buffer.bytes()[from..], b"\n");
                            at.map(|at| from + at + 1)
                        });
                        prop_assert_eq!(found, expected);
                        if let Some(len) = found {
                            let line: Vec<u8> = model.drain(..len).collect();
                            prop_assert_eq!(buffer.take(0, len), &line[..]);
                        }
                    }
                    Action::Prepend(data) => {
                        let mut later = ReadBuffer::default();
                        fill(&mut later, &data, index);
                        model.extend(data);
                        later.prepend(&mut buffer).unwrap();
                        prop_assert!(buffer.is_empty());
                        buffer = later;
                    }
                }
                prop_assert_eq!(buffer.bytes(), &model[..]);
            }
        }
    }
}
