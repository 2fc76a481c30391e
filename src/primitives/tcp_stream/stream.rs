//! The stream: its socket, the place where it is read, and how it moves from the loop to the runtime.

use std::cell::{Cell, RefMut};
use std::io::{self, Write};
use std::net::{self, Shutdown};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::Waker;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::loop_reader::LoopReader;
use super::progress::owned;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::drop_on_loop::drop_attached;
use crate::bridge::io_error::raise_io;
use crate::bridge::loop_handle::running_loop;
use crate::bridge::runtime;
use crate::bridge::waiter::{Waiter, WakeOnce};
use crate::capi::native::native_class;
use crate::capi::section::{self, AS_FREE_THREADED};
use crate::capi::{Exception, Fallible, Raised, Ref, Slot, This};
use crate::clock::monotonic_nanos;
use crate::event_loop::event_loop::EventLoop;
use crate::framing::{ReadRequest, TooLong};
use crate::kernel::futures::new_future;
use crate::primitives::address_error::Address;
use crate::primitives::lookup::host_name;
use crate::primitives::numbers;
use crate::primitives::sleep::duration;
use crate::primitives::socket::{self, Inside, OpenSocket, SocketClass};
use crate::runtime::net::{ReadAhead, ReadProgress, Received, TcpStream as RuntimeStream};
use crate::runtime::sync::Semaphore;

/// A TCP connection that is read and written in whole items. Made by TcpStream.connect and TcpListener.accept.
///
/// One task may read while others write; a second reader is refused with RuntimeError, writers take turns. A read
/// that is cancelled takes nothing: the next read, of whatever kind, gets the bytes. A write that is cancelled has
/// sent an unknown part. Methods with a name of asyncio's streams do what asyncio's do. Not thread-safe: for use in the
/// thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct TcpStream {
    socket: OpenSocket<Open>,
    /// A [`LoopReader`], as long as the stream is read on the loop.
    reader: Slot,
    /// A read waits.
    pub(super) reading: Cell<bool>,
    /// `write_eof` was called.
    pub(super) eof: Cell<bool>,
}

// SAFETY: used by attached threads only, each in a section of the object; see `capi::section`.
unsafe impl Send for TcpStream {}
// SAFETY: as for `Send`.
unsafe impl Sync for TcpStream {}

#[derive(Debug)]
pub(crate) struct Open {
    place: StreamPlace,
    /// It has one permit, which the task holds whose turn it is to write.
    pub(super) turn: Arc<Semaphore>,
}

/// Where a call waits for the socket.
#[derive(Debug)]
enum StreamPlace {
    Loop(net::TcpStream),
    Runtime(Arc<RuntimeStream>, Box<ReadAhead>),
}

impl Open {
    pub(super) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        match &self.place {
            StreamPlace::Loop(socket) => (&*socket).write(data),
            StreamPlace::Runtime(stream, _) => stream.try_write(data),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.place {
            StreamPlace::Loop(socket) => socket.shutdown(how),
            StreamPlace::Runtime(stream, _) => stream.shutdown(how),
        }
    }
}

impl Inside for Open {
    const CLASS: &'static str = "TcpStream";
    const NOUN: &'static str = "stream";
    const KIND: libc::c_int = libc::SOCK_STREAM;

    fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(match &self.place {
            StreamPlace::Loop(socket) => socket.as_raw_fd(),
            StreamPlace::Runtime(stream, _) => stream.as_raw_fd(),
        })
    }

    fn end(self) {
        // A write that is under way still holds the socket, and the shutdown ends it. The shutdown fails if the peer
        // has closed the connection already.
        let _ = self.shutdown(Shutdown::Both);
        if let StreamPlace::Runtime(_, reader) = &self.place
            && let Some(waker) = reader.give_up()
        {
            waker.wake();
        }
    }
}

impl TcpStream {
    /// Makes the stream of a connected, non-blocking socket.
    pub(in crate::primitives) fn create(
        py: Python<'_>,
        socket: net::TcpStream,
        limit: usize,
    ) -> PyResult<Py<PyAny>> {
        let (local, peer) = (socket.local_addr().ok(), socket.peer_addr().ok());
        let reader = LoopReader::create(socket.as_raw_fd(), limit)?;
        let open = Open { place: StreamPlace::Loop(socket), turn: Arc::new(Semaphore::new(1)) };
        let stream = TcpStream {
            socket: OpenSocket::new(open, local, peer),
            reader: Slot::new(Some(reader)),
            reading: Cell::new(false),
            eof: Cell::new(false),
        };
        socket::create(py, stream)
    }

    /// Calls `body` with the reader of the stream, if the stream is read on the loop.
    fn on_loop<R>(&self, body: impl FnOnce(This<'_, LoopReader>) -> R) -> Option<R> {
        self.reader.get().and_then(|reader| reader.with_native(body))
    }

    /// The inside of an open stream. `waited` says that the call found the stream open before.
    pub(super) fn open(&self, waited: bool) -> Result<RefMut<'_, Open>, Raised> {
        if waited { self.socket.get_again() } else { self.socket.get() }
    }

    /// Was the stream closed in this process?
    pub(super) fn is_closed(&self) -> bool {
        !self.socket.is_open() && !self.socket.is_parents()
    }

    /// Returns the item, if it is here or can be received without waiting. `begin` says that it is a new item.
    pub(super) fn look(
        &self,
        request: &ReadRequest,
        begin: bool,
        waited: bool,
    ) -> Result<ReadProgress<Ref>, Raised> {
        let mut open = self.open(waited)?;
        if let StreamPlace::Loop(_) = &open.place {
            if AS_FREE_THREADED {
                // The reader's section may suspend that of the stream.
                drop(open);
            }
            if let Some(found) = self.on_loop(|reader| reader.look(request, begin)) {
                return found;
            }
            // Another thread has closed the stream meanwhile, or moved it.
            open = self.open(waited)?;
        }
        let StreamPlace::Runtime(_, reader) = &mut open.place else { return Err(used_elsewhere()) };
        if begin {
            reader.begin();
        }
        match reader.try_take(request, owned)? {
            ReadProgress::Pending if !reader.is_started() => {
                reader.start(&runtime::handle().map_err(|error| raise_io(&error))?);
                reader.try_take(request, owned)
            }
            found => Ok(found),
        }
    }

    /// Drops a line that is too long.
    pub(super) fn discard(&self, line: TooLong) {
        if self.on_loop(|reader| reader.discard(line)).is_none()
            && let Some(mut open) = self.socket.get_open()
            && let StreamPlace::Runtime(_, reader) = &mut open.place
        {
            reader.discard(line);
        }
    }

    /// Call this after a look that found nothing. Returns the future to wait for, and the time at which the wait
    /// begins; or none if the caller should look again.
    pub(super) fn wait(
        &self,
        py: Python<'_>,
        request: &ReadRequest,
        waited: bool,
    ) -> Result<Option<(Ref, u64)>, Raised> {
        if let Some(object) = self.reader.get() {
            let event_loop = running_loop()?;
            let attach = |own: &Bound<'_, EventLoop>| {
                object.with_native(|reader: This<'_, LoopReader>| {
                    !reader.is_bulk() && LoopReader::attach(reader, own)
                })
            };
            if let Ok(own) = event_loop.bind(py).cast::<EventLoop>()
                && attach(own).ok_or_else(used_elsewhere)?
            {
                // Making a future may run Python code.
                let (future, now) = event_loop.hold(|| {
                    let core = own.get().core();
                    new_future(core).map(|future| (future, core.polls.last_poll()))
                })?;
                drop(self.open(waited)?);
                let waits = object
                    .with_native(|reader: This<'_, LoopReader>| reader.wait(request, future.clone_ref()));
                return Ok((waits == Some(true)).then_some((future, now)));
            }
            return self.on_runtime().map(|_| None);
        }
        // The inside is not borrowed here, because making a future may run Python code.
        let (waiter, future) = Waiter::new(py)?;
        let waker = Waker::from(WakeOnce::new(waiter));
        let mut open = self.open(waited)?;
        let StreamPlace::Runtime(_, reader) = &mut open.place else { return Ok(None) };
        Ok(reader.wait(request, waker).then(|| (future, monotonic_nanos())))
    }

    /// Returns the socket on the runtime. If it is not there yet, moves it there.
    pub(super) fn on_runtime(&self) -> Result<Arc<RuntimeStream>, Raised> {
        if let StreamPlace::Runtime(stream, _) = &self.open(false)?.place {
            return Ok(stream.clone());
        }
        // This comes first, because it may fail, and then nothing must have changed.
        let runtime = runtime::handle().map_err(|error| raise_io(&error))?;
        let Some((received, waiter)) = self.release(false) else {
            // Another thread has closed the stream meanwhile, or moved it.
            return self.runtime_stream();
        };
        let moved = self.socket.change(|Open { place, turn }| {
            let stream = match place {
                StreamPlace::Loop(socket) => Arc::new(runtime.enter(|| RuntimeStream::from_std(socket))?),
                StreamPlace::Runtime(stream, _) => stream,
            };
            let ahead = Box::new(ReadAhead::new(stream.clone(), received));
            Ok::<_, io::Error>(Open { place: StreamPlace::Runtime(stream, ahead), turn })
        });
        if let Some(waiter) = waiter {
            waiter.wake();
        }
        moved.map_err(|error| raise_io(&error))?;
        self.runtime_stream()
    }

    /// The socket of a stream that was moved to the runtime.
    fn runtime_stream(&self) -> Result<Arc<RuntimeStream>, Raised> {
        match &self.open(false)?.place {
            StreamPlace::Runtime(stream, _) => Ok(stream.clone()),
            StreamPlace::Loop(_) => Err(used_elsewhere()),
        }
    }

    /// Ends the reading on the loop, if the stream is read there. Returns what was received so far, and the task that
    /// waits.
    fn release(&self, closed: bool) -> Option<(Received, Option<Waiter>)> {
        self.reader
            .take()
            .and_then(|reader| reader.with_native(|it: This<'_, LoopReader>| it.release(closed)))
    }

    pub(super) fn note_io(&self) {
        self.on_loop(|reader| reader.note_io());
    }

    /// Ends the wait of a read.
    pub(super) fn end_read(&self) {
        self.reading.set(false);
        if self.on_loop(|reader| reader.give_up()).is_none() && !self.socket.is_parents() {
            let waker = match self.socket.get_open().as_deref() {
                Some(Open { place: StreamPlace::Runtime(_, reader), .. }) => reader.give_up(),
                _ => None,
            };
            // The inside is not borrowed here, because dropping the waker may drop the waiting task and run its code.
            drop_attached(waker);
        }
    }
}

/// The error of a call while another thread moves the stream to the runtime. It takes threads that run at once.
#[cold]
fn used_elsewhere() -> Raised {
    Exception::RuntimeError.raise("another thread is using this stream")
}

#[pymethods]
impl TcpStream {
    /// Connect to host, trying its addresses one after the other, for at most timeout seconds in all. limit, in
    /// bytes, is the length of the longest line. Awaitable; gives a TcpStream. Raises TimeoutError,
    /// ConnectionRefusedError or another OSError.
    #[staticmethod]
    #[pyo3(signature = (host, port, *, timeout=None, limit=65536))]
    fn connect<'py>(
        py: Python<'py>,
        host: &Bound<'py, PyString>,
        #[pyo3(from_py_with = numbers::integer)] port: i64,
        timeout: Option<f64>,
        #[pyo3(from_py_with = numbers::integer)] limit: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (host, port) = (host_name(host)?, numbers::port(port, "connect")?);
        let address = Address::new(Some(&host), port);
        let limit = numbers::limit(limit)?;
        let timeout = timeout.map(duration).transpose()?.flatten();
        Operation::opening(py, "TcpStream.connect", async move {
            let connected = match timeout {
                Some(timeout) => RuntimeStream::connect_timeout((host, port), timeout).await,
                None => RuntimeStream::connect((host, port)).await,
            };
            match connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream.into_std())) {
                Ok(socket) => Outcome::value(move |py| TcpStream::create(py, socket, limit)),
                Err(error) => address.not_connected(error),
            }
        })
    }

    /// End the sending direction, after the writes that are under way: the peer reads the end of the stream, and can
    /// still send. Raises OSError if the connection is gone.
    fn write_eof(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (this, _held) = (slf.get(), section::enter_bound(slf));
        this.socket.check_process()?;
        let Some(open) = this.socket.get_open() else { return Ok(()) };
        if this.eof.replace(true) {
            return Ok(());
        }
        match &open.place {
            StreamPlace::Runtime(stream, _) if open.turn.available() == 0 => {
                let (stream, turn) = (stream.clone(), open.turn.clone());
                let runtime = runtime::handle().map_err(|error| raise_io(&error))?;
                runtime.spawn(async move {
                    let _turn = turn.acquire(1).await;
                    // It fails if the connection has ended meanwhile.
                    let _ = stream.shutdown(Shutdown::Write);
                });
            }
            _ => open.shutdown(Shutdown::Write).map_err(|error| raise_io(&error))?,
        }
        Ok(())
    }

    /// Whether a read has found the end of the stream, and everything before it was read.
    fn at_eof(slf: &Bound<'_, Self>) -> bool {
        let (this, _held) = (slf.get(), section::enter_bound(slf));
        this.on_loop(|reader| reader.at_eof()).unwrap_or_else(|| match this.socket.get_open().as_deref() {
            Some(Open { place: StreamPlace::Runtime(_, reader), .. }) => {
                !this.socket.is_parents() && reader.at_eof()
            }
            _ => false,
        })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> Fallible<String> {
        let _held = section::enter_bound(slf);
        Fallible(slf.get().socket.repr())
    }

    fn __traverse__(&self, visit: pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        self.reader.visit_with(&visit)
    }

    /// Clears nothing, because closing the stream needs its fields. The loop's own `clear` breaks the cycle.
    fn __clear__(&self) {}
}

// `socket::add_methods` sets the class, and says where the fields are.
native_class!(unsafe TcpStream);

impl SocketClass for TcpStream {
    type Inside = Open;
    const WAIT_CLOSED: &'static str = "TcpStream.wait_closed";

    fn socket(&self) -> &OpenSocket<Open> {
        &self.socket
    }

    fn close_now(&self) {
        let waiter = self.release(true).and_then(|(_, waiter)| waiter);
        self.socket.close();
        // The task that waits is the parent's, not the forked child's.
        if let Some(waiter) = waiter
            && !self.socket.is_parents()
        {
            waiter.wake();
        }
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.socket.warn_unclosed();
        self.close_now();
    }
}
