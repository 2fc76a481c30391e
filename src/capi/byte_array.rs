//! `bytearray` objects that native code reads and changes.
//!
//! On a free-threaded build a bytearray is guarded by its own lock, as the interpreter's functions for it are. So each
//! method that uses the content does so in a section of the object, in which no other object's fields may be used.

use pyo3::ffi;

use super::buffer::bytes_from;
use super::error::Raised;
use super::inspect::status;
use super::object::Ref;
use super::section::FREE_THREADED;

/// An instance of exactly `bytearray`. Python code may hold it too, and change it whenever it runs.
#[derive(Debug)]
pub(crate) struct ByteArray(Ref);

impl Clone for ByteArray {
    #[inline(always)]
    fn clone(&self) -> ByteArray {
        ByteArray(self.0.clone_ref())
    }
}

impl ByteArray {
    /// Wraps an exact bytearray. Returns any other object as the error.
    #[inline(always)]
    pub(crate) fn exact(object: Ref) -> Result<ByteArray, Ref> {
        // SAFETY: a live object.
        match unsafe { ffi::PyByteArray_CheckExact(object.as_ptr()) } {
            0 => Err(object),
            _ => Ok(ByteArray(object)),
        }
    }

    /// A new one with this content.
    pub(crate) fn new(content: &[u8]) -> Result<ByteArray, Raised> {
        let size = content.len() as ffi::Py_ssize_t;
        // SAFETY: the content is copied; an owned reference or null with an error.
        let made =
            unsafe { Ref::from_owned(ffi::PyByteArray_FromStringAndSize(content.as_ptr().cast(), size)) };
        made.map(ByteArray).ok_or(Raised)
    }

    /// The object.
    pub(crate) fn object(&self) -> &Ref {
        &self.0
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: a bytearray.
        unsafe { ffi::PyByteArray_Size(self.0.as_ptr()) as usize }
    }

    /// Where the content begins, until the size changes.
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        // SAFETY: a bytearray.
        unsafe { ffi::PyByteArray_AsString(self.0.as_ptr()).cast() }
    }

    /// Changes the size. Fails while a memoryview of the object exists.
    pub(crate) fn resize(&self, size: usize) -> Result<(), Raised> {
        // SAFETY: a bytearray; -1 with an error set means failure.
        status(unsafe { ffi::PyByteArray_Resize(self.0.as_ptr(), size as ffi::Py_ssize_t) })
    }

    /// `extend(data)`.
    #[inline(always)]
    pub(crate) fn extend(&self, data: &[u8]) -> Result<(), Raised> {
        self.0.hold(|| {
            let length = self.len();
            self.resize(length + data.len())?;
            // SAFETY: there is room for the data behind the old content. The data does not overlap it: a buffer of the
            // bytearray's own content would have made `resize` fail.
            unsafe {
                std::ptr::copy_nonoverlapping(data.as_ptr(), self.as_mut_ptr().add(length), data.len())
            };
            Ok(())
        })
    }

    /// Calls `body`, which runs no Python code and uses no other object's fields, with the content.
    #[inline(always)]
    pub(crate) fn with_content<R>(&self, body: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: that many bytes begin there, and without the lock nothing changes the size.
        self.0.hold(|| body(unsafe { std::slice::from_raw_parts(self.as_mut_ptr(), self.len()) }))
    }

    /// Removes the first `count` bytes, and returns them as a `bytes` object. There must be that many, but on a
    /// free-threaded build another thread may have removed some. Fails while a memoryview of the object exists.
    pub(crate) fn take_front(&self, count: usize) -> Result<Ref, Raised> {
        debug_assert!(FREE_THREADED || count <= self.len());
        self.0.hold(|| {
            // Making `bytes` runs no Python code that could change the content.
            let taken = self.with_content(|content| bytes_from(&content[..count.min(content.len())]))?;
            self.delete_front(count)?;
            Ok(taken)
        })
    }

    /// `del self[:count]`. Fails while a memoryview of the object exists.
    pub(crate) fn delete_front(&self, count: usize) -> Result<(), Raised> {
        // SAFETY: a bytearray; -1 with an error set means failure.
        status(unsafe { ffi::PySequence_DelSlice(self.0.as_ptr(), 0, count as ffi::Py_ssize_t) })
    }
}
