//! A descriptor with data that was read ahead, or data that waits to be written: what `io.BufferedRandom` is, with a
//! second way to read that never waits.
//!
//! Invariants:
//! - The descriptor's own offset is behind the data that was read ahead, and before the data that waits to be written.
//!   So the offset that other processes share is as `io` leaves it.
//! - Data is there of one kind at most: read ahead, or to be written. (A descriptor without an offset that is both read
//!   and written has no buffer for writes.)
//! - A read only fills the buffer, and [`Buffered::consume`] moves the position. So a read that is given up in between
//!   loses nothing and moves nothing.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use super::cancel::Cancelled;
use super::sys::{self, Now};

/// A read that must not wait leaves more than this to the blocking pool: copying it would keep the loop too long.
pub(super) const MOST_NOW: usize = 256 * 1024;
/// A read that may wait is done in parts of at least this many bytes: a request for far more than there is must not
/// need the memory for it.
const PART: usize = 4 * MOST_NOW;
/// The first read ahead, after a seek too, and the longest. It doubles while the file is read in sequence.
const FIRST_WINDOW: usize = 8 * 1024;
const LAST_WINDOW: usize = 128 * 1024;
/// A buffer that has grown beyond this is given back when it is empty.
const KEPT: usize = 2 * LAST_WINDOW;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// So many bytes; fewer only at the end of the file. Without a buffer, what one read of the system gives of them.
    Bytes(usize),
    /// So many bytes; fewer only at the end of the file, also without a buffer.
    Exactly(usize),
    /// Everything up to the end of the file.
    All,
    /// At least one byte and at most so many.
    Some(usize),
    /// A line of at most so many bytes.
    Line(usize),
    /// Whole lines of more than so many bytes together.
    Lines(usize),
}

/// Whether a read may wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum How<'a> {
    /// No: on the loop's thread.
    Now,
    /// Yes: on a thread of the pool, until the read is cancelled, if it can be.
    Blocking(Option<&'a Cancelled>),
}

/// How many bytes a direct read has written.
pub(super) enum Direct {
    /// What was asked for, or up to the end of the file. The position is behind them.
    Whole(usize),
    /// The rest is not in the page cache. The position is before them.
    Part(usize),
}

#[derive(Debug)]
pub(super) struct Buffered {
    fd: RawFd,
    /// A read may be tried without waiting: a regular file, and the system has not refused it.
    nowait: bool,
    /// `buffering=0`: nothing is read ahead, nothing is kept to be written.
    unbuffered: bool,
    /// How many bytes are kept to be written.
    capacity: usize,
    data: Vec<u8>,
    /// Up to here `data` was consumed.
    start: usize,
    /// How much to read ahead.
    window: usize,
    dirty: Vec<u8>,
}

impl Buffered {
    pub(super) fn new(fd: RawFd, regular: bool, capacity: usize) -> Buffered {
        Buffered {
            fd,
            nowait: regular,
            unbuffered: capacity == 0,
            capacity,
            data: Vec::new(),
            start: 0,
            window: FIRST_WINDOW,
            dirty: Vec::new(),
        }
    }

    // -- reading -----------------------------------------------------------------------------------------------

    /// What was read ahead.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.data[self.start..]
    }

    /// Takes bytes from what was read ahead.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.data.len() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.start = 0;
        if self.data.capacity() > KEPT { self.data = Vec::new() } else { self.data.clear() }
    }

    /// Fills the buffer until it has what is wanted. Returns the length of that, or `None` if it would have to wait.
    pub(super) fn ready(&mut self, want: Want, how: How<'_>) -> io::Result<Option<usize>> {
        if !self.dirty.is_empty() {
            if matches!(how, How::Now) {
                return Ok(None);
            }
            self.flush()?;
        }
        if let (Want::All, How::Blocking(_)) = (want, how) {
            self.expect_rest();
        }
        // Such a read is one system call, here in parts if it is large. One that may not wait may end early.
        let is_raw = self.unbuffered && matches!((want, how), (Want::Bytes(_), How::Blocking(_)));
        let mut scanned = 0;
        loop {
            if let Some(length) = self.found(want, &mut scanned) {
                return Ok(Some(length));
            }
            if is_raw && !self.ahead().is_empty() && !sys::is_readable_within(self.fd, 0)? {
                return Ok(Some(self.ahead().len()));
            }
            let missing = match want {
                Want::Bytes(count) | Want::Exactly(count) => count - self.ahead().len(),
                Want::All | Want::Line(_) | Want::Lines(_) => 1,
                Want::Some(count) if self.unbuffered => count,
                // One read of the system gives all of it, if there is so much.
                Want::Some(count) => count.min(LAST_WINDOW),
            };
            match self.read_more(missing, want, how)? {
                None => return Ok(None),
                Some(0) => return Ok(Some(self.ahead().len())),
                Some(count) if is_raw && count < PART => return Ok(Some(self.ahead().len())),
                Some(_) => {}
            }
        }
    }

    /// The length of what is wanted, if it is in the buffer.
    fn found(&self, want: Want, scanned: &mut usize) -> Option<usize> {
        let ahead = self.ahead();
        let mut line_end = |first: usize| {
            let from = first.max(*scanned).min(ahead.len());
            *scanned = ahead.len();
            memchr(b'\n', &ahead[from..]).map(|index| from + index + 1)
        };
        match want {
            Want::Bytes(count) | Want::Exactly(count) => (ahead.len() >= count).then_some(count),
            Want::Some(count) => (!ahead.is_empty() || count == 0).then(|| count.min(ahead.len())),
            Want::Line(0) => Some(0),
            Want::Line(most) => match line_end(0) {
                Some(end) => Some(end.min(most)),
                None => (ahead.len() >= most).then_some(most),
            },
            Want::Lines(most) => line_end(most),
            Want::All => None,
        }
    }

    /// Makes room for the rest of the file.
    fn expect_rest(&mut self) {
        if let (Ok(size), Ok(here)) = (sys::size(self.fd), sys::seek(self.fd, 0, libc::SEEK_CUR)) {
            let rest = usize::try_from(size - here).unwrap_or(0);
            // One byte more, so that the read that finds the end needs no new room.
            let _ = self.data.try_reserve_exact(rest.saturating_add(1));
        }
    }

    /// Reads once. Returns `None` if that would have to wait, and 0 at the end of the file.
    fn read_more(&mut self, missing: usize, want: Want, how: How<'_>) -> io::Result<Option<usize>> {
        let room = if self.unbuffered && !matches!(want, Want::All) {
            // Nothing must be read beyond what is wanted. Nobody can know where a line ends.
            if matches!(want, Want::Line(_) | Want::Lines(_)) { 1 } else { missing }
        } else {
            let spare = if want == Want::All { self.data.capacity() - self.data.len() } else { 0 };
            missing.max(self.window).max(spare)
        };
        if matches!(how, How::Now) && (!self.nowait || self.ahead().len() + missing > MOST_NOW) {
            return Ok(None);
        }
        if self.start > 0 && self.data.len() + room > self.data.capacity() {
            self.data.drain(..self.start);
            self.start = 0;
        }
        let room = room.min(self.data.len().max(PART));
        self.data.try_reserve(room)?;
        let fd = self.fd;
        let place = &mut self.data.spare_capacity_mut()[..room];
        let count = match how {
            How::Now => match sys::read_now(fd, place, None)? {
                Now::Read(count) => count,
                Now::WouldBlock => return Ok(None),
                Now::Unsupported => {
                    self.nowait = false;
                    return Ok(None);
                }
            },
            How::Blocking(None) => sys::read(fd, place)?,
            How::Blocking(Some(cancel)) => loop {
                if !cancel.wait_readable(fd)? {
                    return Ok(None);
                }
                match sys::read(fd, place) {
                    // Another reader of a non-blocking descriptor was faster.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => break read?,
                }
            },
        };
        // SAFETY: the system has written so many bytes there.
        unsafe { self.data.set_len(self.data.len() + count) };
        self.window = (2 * self.window).min(LAST_WINDOW);
        Ok(Some(count))
    }

    /// Reads `place.len()` bytes without the way through the buffer, if that needs no wait: fewer at the end of the
    /// file. Returns `None` if such a read cannot be tried. If it would have to wait, it moves nothing.
    pub(super) fn read_direct(&mut self, place: &mut [MaybeUninit<u8>]) -> io::Result<Option<Direct>> {
        if !self.nowait || !self.dirty.is_empty() {
            return Ok(None);
        }
        let ahead = self.ahead();
        let mut count = ahead.len().min(place.len());
        place[..count].write_copy_of_slice(&ahead[..count]);
        let from_buffer = count;
        let ended = loop {
            if count == place.len() {
                break Ok(true);
            }
            match sys::read_now(self.fd, &mut place[count..], None) {
                Ok(Now::Read(0)) => break Ok(true),
                Ok(Now::Read(more)) => count += more,
                Ok(Now::WouldBlock) => break Ok(false),
                Ok(Now::Unsupported) => {
                    self.nowait = false;
                    break Ok(false);
                }
                Err(error) => break Err(error),
            }
        };
        if matches!(ended, Ok(true)) {
            self.consume(from_buffer);
            return Ok(Some(Direct::Whole(count)));
        }
        if count > from_buffer {
            sys::seek(self.fd, -((count - from_buffer) as i64), libc::SEEK_CUR)?;
        }
        ended.map(|_| Some(Direct::Part(count)))
    }

    /// As [`Buffered::read_direct`], at an offset of the file. The position does not matter, and does not move.
    pub(super) fn read_now_at(
        &mut self,
        place: &mut [MaybeUninit<u8>],
        offset: i64,
    ) -> io::Result<Option<usize>> {
        if !self.nowait || !self.dirty.is_empty() || place.len() > MOST_NOW {
            return Ok(None);
        }
        let mut count = 0;
        while count < place.len() {
            match sys::read_now(self.fd, &mut place[count..], Some(offset.saturating_add(count as i64)))? {
                Now::Read(0) => break,
                Now::Read(more) => count += more,
                Now::WouldBlock => return Ok(None),
                Now::Unsupported => {
                    self.nowait = false;
                    return Ok(None);
                }
            }
        }
        Ok(Some(count))
    }

    // -- writing -----------------------------------------------------------------------------------------------

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Keeps the data to be written later, if there is room. It never waits.
    pub(super) fn keep(&mut self, data: &[u8]) -> io::Result<bool> {
        if self.dirty.len() + data.len() > self.capacity {
            return Ok(false);
        }
        self.dirty.try_reserve(data.len())?;
        self.rewind()?;
        self.dirty.extend_from_slice(data);
        Ok(true)
    }

    /// Writes or keeps the data; waits. Returns how much it took, which is all but for an unbuffered file.
    pub(super) fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.rewind()?;
        if self.unbuffered {
            return sys::write(self.fd, data);
        }
        self.flush()?;
        if data.len() <= self.capacity {
            self.dirty.try_reserve(data.len())?;
            self.dirty.extend_from_slice(data);
            return Ok(data.len());
        }
        let mut written = 0;
        while written < data.len() {
            written += sys::write(self.fd, &data[written..])?;
        }
        Ok(data.len())
    }

    /// Writes what was kept. After an error the rest is still kept.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let mut outcome = Ok(());
        while outcome.is_ok() && written < self.dirty.len() {
            outcome = sys::write(self.fd, &self.dirty[written..]).map(|count| written += count);
        }
        self.dirty.drain(..written);
        outcome
    }

    /// Writes a part of what was kept. Fails if a non-blocking descriptor has no room, or if a signal comes before.
    pub(super) fn flush_some(&mut self) -> io::Result<()> {
        let written = sys::write_once(self.fd, &self.dirty)?;
        self.dirty.drain(..written);
        Ok(())
    }

    /// Gives up what was read ahead: the descriptor's offset becomes the position. A terminal, or the like, has
    /// neither, and keeps for the next read what a cancelled one has received.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        let ahead = self.ahead().len();
        if ahead > 0
            && let Err(error) = sys::seek(self.fd, -(ahead as i64), libc::SEEK_CUR)
        {
            return if error.raw_os_error() == Some(libc::ESPIPE) { Ok(()) } else { Err(error) };
        }
        self.forget();
        Ok(())
    }

    pub(super) fn write_at(&mut self, data: &[u8], offset: i64) -> io::Result<()> {
        self.flush()?;
        self.rewind()?;
        let mut written = 0;
        while written < data.len() {
            written += sys::write_at(self.fd, &data[written..], offset.saturating_add(written as i64))?;
        }
        Ok(())
    }

    // -- the position --------------------------------------------------------------------------------------------

    pub(super) fn tell(&self) -> io::Result<i64> {
        let offset = sys::seek(self.fd, 0, libc::SEEK_CUR)?;
        let here = offset - self.ahead().len() as i64;
        // What is kept may reach beyond the last offset.
        here.checked_add(self.dirty.len() as i64).ok_or_else(|| io::Error::from_raw_os_error(libc::EOVERFLOW))
    }

    /// The position, and how many bytes a regular file has from there. Waits.
    pub(super) fn rest(&mut self) -> io::Result<(i64, usize)> {
        self.flush()?;
        let here = self.tell()?;
        Ok((here, usize::try_from(sys::size(self.fd)? - here).unwrap_or(0)))
    }

    /// Moves the position behind bytes that were read at an offset.
    pub(super) fn skip(&mut self, count: usize) -> io::Result<()> {
        let target = self.tell()?.saturating_add(count as i64);
        sys::seek(self.fd, target, libc::SEEK_SET)?;
        self.forget();
        Ok(())
    }

    /// Moves the position. Waits if there is something to be written.
    pub(super) fn seek(&mut self, offset: i64, whence: i32) -> io::Result<i64> {
        self.flush()?;
        if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) && !self.data.is_empty() {
            let end = sys::seek(self.fd, 0, libc::SEEK_CUR)?;
            let here = end - self.ahead().len() as i64;
            let target = if whence == libc::SEEK_SET { Some(offset) } else { here.checked_add(offset) };
            let target = target.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
            if (end - self.data.len() as i64..=end).contains(&target) {
                self.start = self.data.len() - (end - target) as usize;
                return Ok(target);
            }
            let target = sys::seek(self.fd, target, libc::SEEK_SET)?;
            self.forget();
            self.window = FIRST_WINDOW;
            return Ok(target);
        }
        let target = sys::seek(self.fd, offset, whence)?;
        self.forget();
        self.window = FIRST_WINDOW;
        Ok(target)
    }

    /// The offset of the end, without moving the position. Waits.
    pub(super) fn end(&mut self) -> io::Result<i64> {
        self.flush()?;
        let here = sys::seek(self.fd, 0, libc::SEEK_CUR)?;
        let end = sys::seek(self.fd, 0, libc::SEEK_END)?;
        sys::seek(self.fd, here, libc::SEEK_SET)?;
        Ok(end)
    }

    pub(super) fn truncate(&mut self, size: Option<i64>) -> io::Result<i64> {
        self.flush()?;
        self.rewind()?;
        let size = size.map_or_else(|| self.tell(), Ok)?;
        sys::truncate(self.fd, size)?;
        Ok(size)
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        sys::sync(self.fd)
    }
}

/// Reads at an offset; waits. Fewer bytes only at the end of the file.
pub(super) fn read_at(fd: RawFd, count: usize, offset: i64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    while data.len() < count {
        let room = (count - data.len()).min(data.len().max(PART));
        data.try_reserve(room)?;
        let at = offset.saturating_add(data.len() as i64);
        let got = fill_at(fd, &mut data.spare_capacity_mut()[..room], at)?;
        // SAFETY: the system has written so many bytes there.
        unsafe { data.set_len(data.len() + got) };
        if got < room {
            break;
        }
    }
    Ok(data)
}

/// As [`read_at`], into this place. Returns how many bytes were written there.
pub(super) fn fill_at(fd: RawFd, place: &mut [MaybeUninit<u8>], offset: i64) -> io::Result<usize> {
    let mut count = 0;
    while count < place.len() {
        match sys::read_at(fd, &mut place[count..], offset.saturating_add(count as i64))? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

/// The index of the first such byte, by the C library's search, which looks at many bytes at a time.
pub(super) fn memchr(byte: u8, data: &[u8]) -> Option<usize> {
    // SAFETY: the call reads within the slice; what it finds lies there.
    unsafe {
        let found = libc::memchr(data.as_ptr().cast(), i32::from(byte), data.len());
        (!found.is_null()).then(|| found.cast::<u8>().offset_from_unsigned(data.as_ptr()))
    }
}
