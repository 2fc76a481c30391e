//! `wakeloop.TcpStream`: a TCP connection that is read where that is cheapest.
//!
//! | file | what it is |
//! |---|---|
//! | `progress` | how far a read is, as Python objects |
//! | `loop_reader` | reading on the loop's thread |
//! | `stream` | the stream, which reads on the loop or on the runtime |
//! | `outcome` | the result or exception that a read ends with |
//! | `call` | one awaitable read or write |
//! | `methods` | the methods that make them, and `async for` over lines or frames |
//!
//! A read first looks for its item in what was received, and a write first tries to send: an await that finds its
//! data continues without a future and without a turn of the loop. A call that has to wait does so in one of two
//! places:
//!
//! - **On the loop.** The poller of wakeloop's own loop watches the socket, and no other thread is woken. Every stream
//!   begins here, and for requests and responses this is the shortest way.
//! - **On the runtime.** A task of the workers receives and finds the ends of items, without the GIL, ahead of the
//!   reader (see `runtime::net::read_ahead`). A stream goes there when a reader falls behind the sender
//!   ([`loop_reader::LoopReader::is_bulk`]), when a write does not fit into the socket, and when a task waits on it in
//!   another loop than the first, or in asyncio's. A read that waits meanwhile continues to wait there.
//!
//! It never comes back from there. A stream that was fast once probably will be again, and it could return only while
//! the task that reads ahead is idle: with nothing received, nothing asked for and no write under way. The cost is a
//! hop between threads for each read that has to wait. A program that alternates between bulk transfers and short
//! requests can open a second connection for one of the two.

mod call;
mod loop_reader;
mod methods;
mod outcome;
mod progress;
mod stream;

use pyo3::prelude::*;

use super::socket;
use crate::capi::class::add_methods;

pub(crate) use stream::TcpStream;

/// Makes the types that have no name in Python, and adds the fast methods to the class. This is done at import,
/// because pyo3 panics if it cannot make a type at its first use.
pub(crate) fn make_types(py: Python<'_>) -> PyResult<()> {
    call::make_type(py)?;
    methods::make_iterator_type(py)?;
    loop_reader::make_type(py)?;
    socket::add_methods::<TcpStream>(py)?;
    add_methods(&py.get_type::<TcpStream>(), methods::METHODS)
}
