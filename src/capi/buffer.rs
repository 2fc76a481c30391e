//! Bytes in and out of Python: `bytes` without the buffer protocol, everything else with it.

use std::mem::MaybeUninit;

use pyo3::ffi;

use super::error::Raised;
use super::exceptions::Exception;
use super::object::{Borrowed, Ref};
use super::raised::clear_error;

unsafe extern "C" {
    /// A public and documented function, which pyo3-ffi declares but does not export.
    fn _PyBytes_Resize(bytes: *mut *mut ffi::PyObject, size: ffi::Py_ssize_t) -> std::ffi::c_int;
}

/// A `Py_buffer` on the stack, released when dropped.
pub(crate) struct Buffer(ffi::Py_buffer);

impl Buffer {
    /// A contiguous read-only view of `object`.
    pub(crate) fn readable(object: &Ref) -> Result<Buffer, Raised> {
        Buffer::get(object, ffi::PyBUF_SIMPLE)
    }

    /// A contiguous writable view of `object`. The error for an object that has none names `parameter`, such as
    /// "recv_into() argument 1".
    pub(crate) fn writable(object: &Ref, parameter: &str) -> Result<Buffer, Raised> {
        Buffer::get(object, ffi::PyBUF_WRITABLE).map_err(|Raised| refused(object, parameter))
    }

    fn get(object: &Ref, flags: i32) -> Result<Buffer, Raised> {
        let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
        // SAFETY: a live object; on success the view is filled, on failure an error is set.
        unsafe {
            if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) < 0 {
                return Err(Raised);
            }
            Ok(Buffer(view.assume_init()))
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len as usize
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    /// The bytes. Python code may change them, so the slice must not outlive the next call into Python.
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len` bytes at `buf` alive until the view is released.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

/// The data given to `write` or `sendto`: a bytes object, or a view of an object that may change as soon as they
/// return.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Bytes(Borrowed<'a>),
    View(Buffer),
}

impl<'a> Content<'a> {
    /// `None` if `data` is neither bytes nor a bytearray nor a memoryview.
    #[inline(always)]
    pub(crate) fn of(data: Borrowed<'a>) -> Result<Option<Content<'a>>, Raised> {
        if data.is_bytes() {
            return Ok(Some(Content::Bytes(data)));
        }
        if data.is_bytes_like() { Buffer::readable(&data).map(Content::View).map(Some) } else { Ok(None) }
    }

    /// The bytes. Python code may change them, so the slice must not outlive the next call into Python.
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Content::Bytes(bytes) => bytes.bytes().unwrap_or_default(),
            Content::View(view) => view.as_slice(),
        }
    }

    /// Returns the data in a form that can be sent later, when the first `sent` bytes are sent: a bytes object, and
    /// how many of its bytes are sent already.
    pub(crate) fn keep(self, sent: usize) -> Result<(Ref, usize), Raised> {
        match self {
            Content::Bytes(bytes) => Ok((bytes.to_owned(), sent)),
            Content::View(view) => Ok((bytes_from(&view.as_slice()[sent..])?, 0)),
        }
    }
}

/// Is the error that is set one about a non-contiguous buffer, such as every other byte of a bytearray? In asyncio
/// the system call raises it, so asyncio handles it as an error of the socket.
#[cold]
pub(crate) fn is_scattered() -> bool {
    Exception::BufferError.is_set()
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view was filled by PyObject_GetBuffer and is released once.
        unsafe { ffi::PyBuffer_Release(&mut self.0) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// The TypeError for an object that has no writable buffer, as `socket.recv_into` raises it. It replaces the error of
/// the object itself.
#[cold]
fn refused(object: &Ref, parameter: &str) -> Raised {
    clear_error();
    let name = if object.is_none() { "None".to_owned() } else { object.kind_name() };
    let text = format!("{parameter} must be read-write bytes-like object, not {name}");
    Exception::TypeError.raise(&text)
}

/// `bytes(data)`.
#[inline(always)]
pub(crate) fn bytes_from(data: &[u8]) -> Result<Ref, Raised> {
    // SAFETY: the data is copied.
    unsafe {
        Ref::from_owned(ffi::PyBytes_FromStringAndSize(data.as_ptr().cast(), data.len() as ffi::Py_ssize_t))
    }
    .ok_or(Raised)
}

/// `b"".join(slices)`.
pub(crate) fn concat<'a>(slices: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Ref, Raised> {
    let mut joined = RawBytes::with_capacity(slices.clone().map(<[u8]>::len).sum())?;
    let mut place = joined.as_mut_ptr();
    // SAFETY: the object has room for all the slices, one behind the other, and so all of it is written.
    unsafe {
        for slice in slices {
            std::ptr::copy_nonoverlapping(slice.as_ptr(), place, slice.len());
            place = place.add(slice.len());
        }
        Ok(joined.whole())
    }
}

/// A `bytes` object that no other code has seen: it is filled in place and then cut to size.
#[derive(Debug)]
pub(crate) struct RawBytes(Ref);

impl RawBytes {
    pub(crate) fn with_capacity(size: usize) -> Result<RawBytes, Raised> {
        // SAFETY: null data asks for uninitialised content.
        unsafe { Ref::from_owned(ffi::PyBytes_FromStringAndSize(std::ptr::null(), size as ffi::Py_ssize_t)) }
            .map(RawBytes)
            .ok_or(Raised)
    }

    /// As [`RawBytes::with_capacity`], from an object that was used before. It has its old content. Its cached hash
    /// is reset, as in a new object.
    ///
    /// # Safety
    /// `bytes` is a `bytes` object, and this is the only reference to it.
    #[inline(always)]
    pub(crate) unsafe fn again(bytes: Ref) -> RawBytes {
        // SAFETY: the caller's contract.
        #[allow(deprecated, reason = "no other function resets the cached hash")]
        unsafe {
            (*bytes.as_ptr().cast::<ffi::PyBytesObject>()).ob_shash = -1;
        }
        RawBytes(bytes)
    }

    /// The place of the content, for writing.
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: a bytes object, to which this value has the only reference.
        unsafe { (&raw mut (*self.0.as_ptr().cast::<ffi::PyBytesObject>()).ob_sval).cast() }
    }

    /// The place of the content, for reading.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        // SAFETY: a bytes object, to which this value has the only reference.
        unsafe { (&raw const (*self.0.as_ptr().cast::<ffi::PyBytesObject>()).ob_sval).cast() }
    }

    /// The object, which no code may see before it is filled and [`RawBytes::again`] was called.
    pub(crate) fn hidden(self) -> Ref {
        self.0
    }

    /// The object at its full length.
    ///
    /// # Safety
    /// All of it was written.
    #[inline(always)]
    pub(crate) unsafe fn whole(self) -> Ref {
        self.0
    }

    /// The object with `data` for its content.
    ///
    /// # Safety
    /// The object is as long as `data`.
    #[inline(always)]
    pub(crate) unsafe fn filled(mut self, data: &[u8]) -> Ref {
        // SAFETY: there is room for the data, by the caller's contract, and all of the object is written.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.as_mut_ptr(), data.len());
            self.whole()
        }
    }

    /// Cuts the object to the `size` bytes that were filled.
    ///
    /// # Safety
    /// The first `size` bytes were written, and `size` is at most the capacity.
    pub(crate) unsafe fn finish(self, size: usize) -> Result<Ref, Raised> {
        self.resized(size).map(|bytes| bytes.0)
    }

    /// The object with another capacity, and the content that both have room for. The system moves the pages of a large
    /// object without a copy. If there is no memory, the content is lost.
    pub(crate) fn resized(self, capacity: usize) -> Result<RawBytes, Raised> {
        let mut object = self.0.into_ptr();
        // SAFETY: the only reference to a bytes object; on failure the object is gone and null is left.
        unsafe {
            if _PyBytes_Resize(&mut object, capacity as ffi::Py_ssize_t) < 0 {
                return Err(Raised);
            }
            Ref::from_owned(object).map(RawBytes).ok_or(Raised)
        }
    }
}

/// The content of a `bytes` object (or of an instance of a subclass).
///
/// # Safety
/// `object` is a `bytes` object or an instance of a subclass, and it outlives the slice.
#[inline(always)]
pub(crate) unsafe fn bytes_slice<'a>(object: *mut ffi::PyObject) -> &'a [u8] {
    // SAFETY: bytes are immutable and the caller keeps the object alive.
    unsafe {
        std::slice::from_raw_parts(ffi::PyBytes_AS_STRING(object).cast(), ffi::Py_SIZE(object) as usize)
    }
}
