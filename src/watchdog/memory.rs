//! Reads memory of this process that another thread may free at any time.
//!
//! The kernel copies the memory into a pipe, and from there to us. It reports an address that is not mapped as an error.
//! Unlike `process_vm_readv`, a pipe is on every system, and no sandbox forbids it.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::with_exposed_provenance;

use pyo3::ffi;

use crate::capi::section::FREE_THREADED;

/// The kernel copies so much at once: an empty pipe has room for it.
const CHUNK: usize = libc::PIPE_BUF;
/// Strings are cut here, in characters.
const LONGEST_TEXT: usize = 500;
/// The bits for whether a `str` is interned. Without a GIL they are a byte, which threads change by itself.
const INTERNED_BITS: u32 = if FREE_THREADED { 8 } else { 2 };
/// Longer `bytes` are not read.
const LONGEST_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Memory {
    pub(super) fn open() -> io::Result<Memory> {
        let (reader, writer) = io::pipe()?;
        Ok(Memory { reader, writer })
    }

    fn read(&self, mut address: usize, into: &mut [u8]) -> Option<()> {
        for chunk in into.chunks_mut(CHUNK) {
            let (fd, source) = (self.writer.as_raw_fd(), with_exposed_provenance(address));
            // SAFETY: the kernel reads the memory, if it can, and writes into a pipe.
            let copied = unsafe { libc::write(fd, source, chunk.len()) };
            let copied = usize::try_from(copied).ok()?;
            (&self.reader).read_exact(chunk.get_mut(..copied)?).ok()?;
            if copied < chunk.len() {
                return None;
            }
            address = address.checked_add(copied)?;
        }
        Some(())
    }

    /// The pointer, or another number of this size, at an address.
    pub(super) fn word(&self, address: usize) -> Option<usize> {
        let mut bytes = [0; size_of::<usize>()];
        self.read(address, &mut bytes)?;
        Some(usize::from_ne_bytes(bytes))
    }

    /// The C `int` at an address.
    pub(super) fn int(&self, address: usize) -> Option<i32> {
        let mut bytes = [0; size_of::<i32>()];
        self.read(address, &mut bytes)?;
        Some(i32::from_ne_bytes(bytes))
    }

    /// Is there an object of exactly this type at the address?
    pub(super) fn is_of_type(&self, address: usize, kind: *const ffi::PyTypeObject) -> bool {
        self.word(address.wrapping_add(offset_of!(ffi::PyObject, ob_type))) == Some(kind.addr())
    }

    /// The value of the `bytes` at an address.
    pub(super) fn bytes(&self, address: usize) -> Option<Vec<u8>> {
        if !self.is_of_type(address, &raw const ffi::PyBytes_Type) {
            return None;
        }
        let length = self.word(address.wrapping_add(offset_of!(ffi::PyVarObject, ob_size)))?;
        let mut bytes = vec![0; (length <= LONGEST_BYTES).then_some(length)?];
        self.read(address.wrapping_add(offset_of!(ffi::PyBytesObject, ob_sval)), &mut bytes)?;
        Some(bytes)
    }

    /// The value of the `str` at an address.
    pub(super) fn text(&self, address: usize) -> Option<String> {
        if !self.is_of_type(address, &raw const ffi::PyUnicode_Type) {
            return None;
        }
        let length =
            self.word(address.wrapping_add(offset_of!(ffi::PyASCIIObject, length)))?.min(LONGEST_TEXT);
        // The bits, from the lowest: `interned`, three for `kind`, `compact`, `ascii`.
        let state = self.int(address.wrapping_add(offset_of!(ffi::PyASCIIObject, state)))? >> INTERNED_BITS;
        let (size, compact, ascii) = ((state & 7) as usize, state >> 3 & 1, state >> 4 & 1);
        if compact == 0 || !matches!(size, 1 | 2 | 4) {
            return None;
        }
        let header = if ascii == 1 {
            size_of::<ffi::PyASCIIObject>()
        } else {
            size_of::<ffi::PyCompactUnicodeObject>()
        };
        let mut characters = vec![0; length * size];
        self.read(address.wrapping_add(header), &mut characters)?;
        let number = |character: &[u8]| match *character {
            [a] => u32::from(a),
            [a, b] => u32::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            _ => u32::MAX,
        };
        Some(characters.chunks(size).map(|it| char::from_u32(number(it)).unwrap_or('\u{fffd}')).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_mapped_is_copied_and_other_memory_is_an_error() {
        let memory = Memory::open().unwrap();
        let numbers: Vec<usize> = (0..5000).collect();
        assert_eq!(memory.word(numbers.as_ptr().expose_provenance() + 8), Some(1));
        let mut bytes = vec![0; numbers.len() * size_of::<usize>()];
        memory.read(numbers.as_ptr().addr(), &mut bytes).unwrap();
        assert!(bytes.chunks(8).enumerate().all(|(at, it)| it == at.to_ne_bytes()));
        assert_eq!((memory.word(0), memory.word(8), memory.word(usize::MAX - 3)), (None, None, None));
    }

    #[test]
    fn memory_whose_end_is_not_mapped_is_an_error_and_leaves_nothing_in_the_pipe() {
        let memory = Memory::open().unwrap();
        // SAFETY: two fresh pages, of which the second is given back.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let size = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let pages = libc::mmap(std::ptr::null_mut(), 2 * size, libc::PROT_READ, flags, -1, 0);
            assert_eq!(libc::munmap(pages.byte_add(size), size), 0);
            pages.byte_add(size - 8)
        };
        assert_eq!(memory.read(page.addr(), &mut [0; 16]), None);
        assert_eq!(memory.word(page.addr()), Some(0));
        let number = 7_usize;
        assert_eq!(memory.word((&raw const number).addr()), Some(7));
    }
}
