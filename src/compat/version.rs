//! What asyncio does differently from one version of CPython to the next, where native code does it instead.
//!
//! What can be asked of the interpreter at hand, such as whether a class has a method, is asked there. Differences of the C
//! API are in `capi`.

/// `writelines` of a stream transport refuses calls after `write_eof` and during `sendfile`, and sends the pieces as they
/// are (3.12). Before, it joins the pieces and calls `write`, and a buffer that is not contiguous raises a TypeError behind
/// pending data.
pub(crate) const TRANSPORT_SENDS_PIECES: bool = cfg!(Py_3_12);

/// `StreamReader.readuntil` takes a tuple of separators (3.13).
pub(crate) const READUNTIL_TAKES_TUPLES: bool = cfg!(Py_3_13);

/// A server lists its clients: `Server._attach` and `_detach` take the transport (3.13). Before, they only count.
pub(crate) const SERVER_LISTS_CLIENTS: bool = cfg!(Py_3_13);
