//! Memory that may not be there, for the parts that know nothing of Python.
//!
//! An allocation whose size a program or a peer chooses is fallible: it returns an error of the kind
//! [`OutOfMemory`](io::ErrorKind::OutOfMemory), which Python sees as a MemoryError. Any thread may call these functions.

use std::alloc::{self, Layout};
use std::io;

/// The error of an allocation that failed.
#[cold]
pub(crate) fn out_of_memory() -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

/// Is it the error of an allocation that failed? The system's `ENOMEM` is of the same kind, and not meant.
pub(crate) fn is_out_of_memory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory && error.raw_os_error().is_none()
}

/// Makes room for `more` items. If there is no memory for them, nothing changes.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn grow<T>(items: &mut Vec<T>, more: usize) -> io::Result<()> {
    items.try_reserve(more).map_err(|_| out_of_memory())
}

/// So many zeroes. As `vec![0; len]`, it does not touch the memory if the system has zeroed it.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn zeroed(len: usize) -> io::Result<Vec<u8>> {
    let Ok(layout) = Layout::array::<u8>(len) else { return Err(out_of_memory()) };
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(out_of_memory());
    }
    // SAFETY: allocated with the layout of a vector of `len` bytes, all of which are initialised.
    Ok(unsafe { Vec::from_raw_parts(memory, len, len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_that_fails_is_an_error() {
        assert!(!is_out_of_memory(&io::Error::from_raw_os_error(libc::ENOMEM)));
        assert!(is_out_of_memory(&zeroed(isize::MAX as usize / 2).unwrap_err()));
        assert!(grow(&mut Vec::<u64>::new(), usize::MAX / 64).is_err());
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert!(zeroed(0).unwrap().is_empty());
    }
}
