//! Differences of asyncio between the versions of CPython, for native code that replaces asyncio's.
//!
//! Whatever can be tested at run time, such as whether a class has a method, is tested where it matters. Differences of
//! the C API are in `capi`.

/// Since 3.12 `writelines` of a stream transport raises after `write_eof` and during `sendfile`, and sends its buffers
/// without joining them. Before, it joins them and calls `write`, which copies to a bytearray while data is pending:
/// then a buffer that is not contiguous raises a TypeError.
pub(crate) const TRANSPORT_SENDS_PIECES: bool = cfg!(Py_3_12);

/// Since 3.13 `StreamReader.readuntil` takes a tuple of separators.
pub(crate) const READUNTIL_TAKES_TUPLES: bool = cfg!(Py_3_13);

/// Since 3.13 `Server._attach` and `_detach` take the transport, and the server keeps a set of its clients. Before,
/// they only count them.
pub(crate) const SERVER_LISTS_CLIENTS: bool = cfg!(Py_3_13);

/// Since 3.13 `epoll.register` warns of a bool in place of a descriptor.
pub(crate) const WARNS_OF_BOOL_AS_DESCRIPTOR: bool = cfg!(Py_3_13);

/// Since 3.14 (and 3.13.3) `create_task` passes every keyword on to the task, so `eager_start` too.
pub(crate) const CREATE_TASK_TAKES_EAGER_START: bool = cfg!(Py_3_14);
