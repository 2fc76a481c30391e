//! The two ways to encrypt and decrypt.
//!
//! **Native**: SSL_read_ex and SSL_write_ex of the very libssl that `_ssl` uses, on the `SSL` that CPython made
//! for the connection, over an [`Io`] of ours. **Object**: the methods of CPython's SSLObject over its
//! MemoryBIOs, cached. The first is chosen if a self-test says once per process that it works, and if this
//! connection's `SSL` was seen being made, belongs to its SSLObject, and nobody has put code of his own
//! between: an overridden `read` or `write`, or a message callback (whose exceptions would surface too late).
//!
//! Errors are CPython's either way: when libssl reports one, the SSLObject is asked to do the same, and raises.

use std::cell::Cell;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::connection::Connection;
use crate::capi::buffer::{bytes_from, bytes_slice};
use crate::capi::call::{call, call0, call1, getattr};
use crate::capi::error::{exception, raise, restore};
use crate::capi::imports::imports;
use crate::capi::object::integer;
use crate::capi::{Fallible, Raised, Ref, Slot};
use crate::libssl::{Io, Library, Outcome, Ssl, capture};

/// The largest plaintext of one TLS record.
pub(super) const RECORD: usize = 16 * 1024;
/// Below this size a copy of the input is cheaper than a view of it.
const COPY: usize = 4 * 1024;

/// Who does the cryptography of one connection.
#[derive(Debug)]
pub(crate) enum Engine {
    Native(Native),
    Object(Object),
}

#[derive(Debug)]
pub(crate) struct Native {
    library: &'static Library,
    /// Alive as long as `raw`, which owns it.
    ssl: Ssl,
    pub(super) io: Arc<Io>,
    /// The `_ssl._SSLSocket`. The connection keeps its owner, the `ssl.SSLObject`, which it knows weakly.
    raw: Slot,
}

/// Bound methods of CPython's objects.
#[derive(Debug)]
pub(crate) struct Object {
    read: Slot,
    write: Slot,
    incoming: Slot,
    feed: Slot,
    outgoing: Slot,
    drain: Slot,
    /// The methods are CPython's own, which keep no reference to a buffer: memory of ours may be lent to them.
    lends: bool,
    /// `MemoryBIO.pending` of both, if that is what they are.
    pending: Option<ffi::getter>,
    /// How much ciphertext has come since the last read.
    fed: Cell<usize>,
}

/// What one read of a message has brought.
#[derive(Debug)]
pub(super) enum Message {
    /// All there is.
    Whole(Ref),
    /// There may be more, which belongs to the same call of the protocol.
    Part(Ref),
    Nothing(End),
}

/// Memory that libssl decrypts into: its first `filled` bytes are plaintext.
#[derive(Debug)]
pub(super) struct Room<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    filled: usize,
}

impl Room<'_> {
    pub(super) fn new(memory: &mut [MaybeUninit<u8>]) -> Room<'_> {
        Room { memory, filled: 0 }
    }

    /// Decrypts into what room a vector has left.
    #[inline(always)]
    pub(super) fn in_vector(plain: &mut Vec<u8>, decrypt: impl FnOnce(&mut Room<'_>) -> End) -> End {
        let mut room = Room::new(plain.spare_capacity_mut());
        let end = decrypt(&mut room);
        let filled = room.filled;
        // SAFETY: that much of the spare capacity was filled.
        unsafe { plain.set_len(plain.len() + filled) };
        end
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }
}

/// How a batch of reads ended.
#[derive(Debug)]
pub(super) enum End {
    /// All there is was decrypted.
    Drained,
    /// The room is used up; there may be more.
    More,
    /// The peer has sent close_notify.
    Closed,
    /// The exception to fail with.
    Failed(Ref),
}

/// How a write ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    Bytes(usize),
    /// The peer has to say something first.
    WantRead,
}

impl Engine {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Engine::Native(_) => "native",
            Engine::Object(_) => "sslobject",
        }
    }

    pub(super) fn input_size(&self) -> usize {
        match self {
            Engine::Native(native) => native.io.input_size(),
            Engine::Object(object) => object.pending(&object.incoming),
        }
    }

    pub(super) fn output_size(&self) -> usize {
        match self {
            Engine::Native(native) => native.io.output_size(),
            Engine::Object(object) => object.pending(&object.outgoing),
        }
    }

    /// Keeps ciphertext for the next read.
    pub(super) fn feed(&self, data: &[u8]) -> Result<(), Raised> {
        match self {
            Engine::Native(native) => {
                native.io.keep(data);
                Ok(())
            }
            Engine::Object(object) => object.feed(data),
        }
    }

    /// Decrypts into the room of `plain` until nothing is left or the room is used up.
    pub(super) fn decrypt(&self, plain: &mut Vec<u8>) -> Result<End, Raised> {
        match self {
            Engine::Native(native) => Ok(Room::in_vector(plain, |room| native.decrypt(room))),
            Engine::Object(object) => object.decrypt(plain),
        }
    }

    /// Takes the ciphertext out that waits to be sent: there is some.
    pub(super) fn take_output(&self) -> Result<Output, Raised> {
        match self {
            Engine::Native(native) => Ok(Output::Vector(native.io.exchange_output(Vec::new(), false))),
            Engine::Object(object) => match object.drain.get() {
                Some(drain) => call0(&drain).map(Output::Bytes),
                None => Ok(Output::Vector(Vec::new())),
            },
        }
    }

    /// The connection is lost.
    pub(super) fn clear(&self) {
        if let Engine::Native(native) = self {
            native.io.clear();
        }
    }

    /// The handshake is over.
    pub(super) fn established(&self) {
        if let Engine::Native(native) = self {
            // SAFETY: `raw` owns the SSL; see `Native::decrypt`.
            unsafe { native.library.established(native.ssl, &native.io) };
        }
    }

    /// Every object that is held, for the collector.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        let (native, object) = match self {
            Engine::Native(native) => (Some(&native.raw), None),
            Engine::Object(object) => (None, Some(object.slots())),
        };
        native.into_iter().chain(object.into_iter().flatten())
    }
}

/// Ciphertext on its way out.
#[derive(Debug)]
pub(super) enum Output {
    Vector(Vec<u8>),
    /// A `bytes` object.
    Bytes(Ref),
}

impl Native {
    /// So many bytes have come in this turn of the loop, and are read next.
    #[inline(always)]
    pub(super) fn reads(&self, size: usize, turn: u64) {
        self.library.reads(&self.io, size, turn);
    }

    /// Decrypts `data`, after what was kept before it, until nothing is left or the room is used up.
    pub(super) fn decrypt_lent(&self, data: &[u8], room: &mut Room<'_>) -> End {
        // SAFETY: taken back below, before `data` can go away.
        unsafe { self.io.lend(data) };
        let end = self.decrypt(room);
        self.io.take_back();
        end
    }

    fn decrypt(&self, room: &mut Room<'_>) -> End {
        self.library.clear_errors();
        loop {
            let left = &mut room.memory[room.filled..];
            if left.len() < RECORD {
                return End::More;
            }
            let left = (left.as_mut_ptr().cast::<u8>(), left.len());
            // SAFETY: `raw` owns the SSL; we hold the GIL, and other threads may not use it meanwhile, as with
            // asyncio. The room is borrowed for us alone.
            match self.io.at_work(|| unsafe { self.library.read(self.ssl, left) }) {
                Outcome::Done(count) => {
                    room.filled += count;
                    if self.io.input_size() == 0 {
                        return End::Drained;
                    }
                }
                Outcome::WantRead => return End::Drained,
                // CPython tells the exact error, or that it is an orderly close.
                Outcome::Closed | Outcome::Failed => match self.ask() {
                    Some(end) => return end,
                    None => return End::Drained,
                },
            }
        }
    }

    /// Has CPython do the read that ended.
    #[cold]
    fn ask(&self) -> Option<End> {
        let Some(raw) = self.raw.get() else { return Some(End::Closed) };
        // SAFETY: the GIL is held.
        let py = unsafe { Python::assume_attached() };
        match raw.bind(py).call_method1(Fallible("read"), (1,)) {
            // Nothing but b"" can come out here: libssl has just said that it has no more.
            Ok(_) => Some(End::Closed),
            Err(error) if is_again(py, &error) => None,
            Err(error) => Some(End::Failed(Ref::from(error.into_value(py).into_bound(py).into_any()))),
        }
    }

    /// Encrypts `data` into the output.
    pub(super) fn encrypt(&self, data: &[u8]) -> Result<Wrote, Raised> {
        self.library.clear_errors();
        // SAFETY: as in `decrypt`.
        match self.io.at_work(|| unsafe { self.library.write(self.ssl, data) }) {
            Outcome::Done(count) => Ok(Wrote::Bytes(count)),
            Outcome::WantRead => Ok(Wrote::WantRead),
            Outcome::Closed | Outcome::Failed => {
                let raw = self.raw.get().ok_or(Raised)?;
                // SAFETY: the GIL is held.
                let py = unsafe { Python::assume_attached() };
                let copy = bytes_from(data)?;
                let written = raw.bind(py).call_method1(Fallible("write"), (copy.bind(py),));
                wrote(py, written)
            }
        }
    }
}

impl Object {
    fn slots(&self) -> [&Slot; 6] {
        [&self.read, &self.write, &self.incoming, &self.feed, &self.outgoing, &self.drain]
    }

    fn feed(&self, data: &[u8]) -> Result<(), Raised> {
        self.fed.set(self.fed.get().saturating_add(data.len()));
        let Some(feed) = self.feed.get() else { return Ok(()) };
        if data.len() < COPY || !self.lends {
            return call1(&feed, bytes_from(data)?.as_ptr()).map(drop);
        }
        // SAFETY: a view of memory that outlives the call, handed to MemoryBIO.write, which copies and keeps no
        // reference.
        let view = unsafe {
            Ref::from_owned(ffi::PyMemoryView_FromMemory(
                data.as_ptr().cast_mut().cast(),
                data.len() as ffi::Py_ssize_t,
                ffi::PyBUF_READ,
            ))
        };
        call1(&feed, view.ok_or(Raised)?.as_ptr()).map(drop)
    }

    fn decrypt(&self, plain: &mut Vec<u8>) -> Result<End, Raised> {
        self.fed.set(0);
        loop {
            if plain.capacity() - plain.len() < RECORD {
                return Ok(End::More);
            }
            let outcome = if self.lends { self.read_into(plain) } else { self.read_bytes(plain) };
            match outcome {
                Ok(0) => return Ok(End::Closed),
                Ok(_) if self.pending(&self.incoming) == 0 => return Ok(End::Drained),
                Ok(_) => {}
                Err(raised) => return Ok(no_read(raised)),
            }
        }
    }

    /// Reads what is most often one message in one record, which becomes a `bytes` without a detour: `None` where
    /// more than that has come.
    #[inline(always)]
    pub(super) fn read_message(&self) -> Option<Result<Message, Raised>> {
        // A record is longer than what is in it. Where the end of one comes alone, the room is used up.
        let size = self.fed.take();
        if size == 0 || size > RECORD || !self.lends {
            return None;
        }
        Some(self.read_up_to(size))
    }

    fn read_up_to(&self, size: usize) -> Result<Message, Raised> {
        let Some(read) = self.read.get() else { return Ok(Message::Nothing(End::Closed)) };
        let data = match call1(&read, integer(size as i64)?.as_ptr()) {
            Ok(data) => data,
            Err(raised) => return Ok(Message::Nothing(no_read(raised))),
        };
        // SAFETY: `_SSLSocket.read` gives a bytes object.
        Ok(match unsafe { bytes_slice(data.as_ptr()) }.len() {
            0 => Message::Nothing(End::Closed),
            count if count < size && self.pending(&self.incoming) == 0 => Message::Whole(data),
            _ => Message::Part(data),
        })
    }

    /// `MemoryBIO.pending`.
    #[inline(always)]
    fn pending(&self, bio: &Slot) -> usize {
        let Some(get) = self.pending else { return ask_pending(bio) };
        let Some(bio) = bio.get() else { return 0 };
        // SAFETY: the getter of the class that the object is of, whose closure is null; an owned reference to an int,
        // or null with an error.
        unsafe {
            match Ref::from_owned(get(bio.as_ptr(), std::ptr::null_mut())) {
                Some(pending) => ffi::PyLong_AsSize_t(pending.as_ptr()),
                None => {
                    ffi::PyErr_Clear();
                    0
                }
            }
        }
    }

    /// `_SSLSocket.read(n, buffer)`, straight into the vector.
    fn read_into(&self, plain: &mut Vec<u8>) -> Result<usize, Raised> {
        let Some(read) = self.read.get() else { return Ok(0) };
        let room = plain.spare_capacity_mut();
        let size = room.len().min(RECORD) as ffi::Py_ssize_t;
        // SAFETY: a view of the vector's own room, handed to a method of CPython that keeps no reference. Both
        // are made with the GIL held; each owned result is wrapped at once.
        let (view, length) = unsafe {
            let view = ffi::PyMemoryView_FromMemory(room.as_mut_ptr().cast(), size, ffi::PyBUF_WRITE);
            (
                Ref::from_owned(view).ok_or(Raised)?,
                Ref::from_owned(ffi::PyLong_FromSsize_t(size)).ok_or(Raised)?,
            )
        };
        let count = call(&read, &[length.as_ptr(), view.as_ptr()])?;
        // SAFETY: a live object; -1 with an error set means failure.
        let count = unsafe { ffi::PyLong_AsSsize_t(count.as_ptr()) };
        if count < 0 || count > size {
            return Err(Raised);
        }
        // SAFETY: the method has filled `count` bytes.
        unsafe { plain.set_len(plain.len() + count as usize) };
        Ok(count as usize)
    }

    /// `read(n)` of an object that may do anything with a buffer.
    fn read_bytes(&self, plain: &mut Vec<u8>) -> Result<usize, Raised> {
        let Some(read) = self.read.get() else { return Ok(0) };
        // SAFETY: making an int.
        let size = unsafe { Ref::from_owned(ffi::PyLong_FromSize_t(RECORD)) }.ok_or(Raised)?;
        let data = call1(&read, size.as_ptr())?;
        let view = crate::capi::buffer::Buffer::readable(data.as_ptr())?;
        plain.extend_from_slice(view.as_slice());
        Ok(view.len())
    }

    /// Encrypts `data`, a bytes-like object.
    pub(super) fn encrypt(&self, data: &Ref) -> Result<Wrote, Raised> {
        let Some(write) = self.write.get() else { return Err(Raised) };
        // SAFETY: the GIL is held.
        let py = unsafe { Python::assume_attached() };
        let written = call1(&write, data.as_ptr()).map_err(|Raised| PyErr::fetch(py));
        wrote(py, written.map(|count| count.bind(py).clone()))
    }
}

/// `pending` of something in the place of a MemoryBIO.
#[cold]
fn ask_pending(bio: &Slot) -> usize {
    let Some(bio) = bio.get() else { return 0 };
    // SAFETY: the GIL is held.
    let py = unsafe { Python::assume_attached() };
    let pending = getattr(bio.as_ptr(), imports().pending.as_ptr()).map_err(|Raised| PyErr::fetch(py));
    pending.and_then(|pending| pending.bind(py).extract()).unwrap_or(0)
}

/// What the error of a read means, which is set.
#[cold]
fn no_read(raised: Raised) -> End {
    let exception = raised.take();
    // SAFETY: the GIL is held.
    let py = unsafe { Python::assume_attached() };
    let error = PyErr::from_value(exception.bind(py));
    if is_again(py, &error) { End::Drained } else { End::Failed(exception) }
}

fn wrote(py: Python<'_>, written: PyResult<Bound<'_, PyAny>>) -> Result<Wrote, Raised> {
    match written.and_then(|count| count.extract()) {
        Ok(count) => Ok(Wrote::Bytes(count)),
        Err(error) if is_again(py, &error) => Ok(Wrote::WantRead),
        Err(error) => Err(restore(py, error)),
    }
}

/// What the engine needs of the `ssl` module.
struct Module {
    /// asyncio's `SSLAgainErrors`.
    again: Py<PyAny>,
    object_class: Py<PyAny>,
    socket_class: Py<PyAny>,
    memory_class: Py<PyAny>,
    /// The getter of `MemoryBIO.pending`.
    pending: Option<ffi::getter>,
}

fn module(py: Python<'_>) -> PyResult<&'static Module> {
    static MODULE: pyo3::sync::PyOnceLock<Module> = pyo3::sync::PyOnceLock::new();
    MODULE.get_or_try_init(py, || {
        let ssl = py.import(Fallible("ssl"))?;
        let memory_class = ssl.getattr(Fallible("MemoryBIO"))?;
        Ok(Module {
            again: py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("SSLAgainErrors"))?.unbind(),
            object_class: ssl.getattr(Fallible("SSLObject"))?.unbind(),
            socket_class: py.import(Fallible("_ssl"))?.getattr(Fallible("_SSLSocket"))?.unbind(),
            pending: getter(&memory_class, "pending")?,
            memory_class: memory_class.unbind(),
        })
    })
}

/// The C function behind an attribute of a class that Python code cannot change, and that needs nothing more.
fn getter(class: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<ffi::getter>> {
    let found = class.getattr(Fallible(name))?;
    // SAFETY: a class and its attribute, which is looked into if it is what C code makes for a getter; that lives as
    // long as the class, which the module keeps.
    unsafe {
        let kind = class.as_ptr().cast::<ffi::PyTypeObject>();
        if ffi::PyType_HasFeature(kind, ffi::Py_TPFLAGS_IMMUTABLETYPE) == 0
            || ffi::Py_TYPE(found.as_ptr()) != &raw mut ffi::PyGetSetDescr_Type
        {
            return Ok(None);
        }
        let definition = (*found.as_ptr().cast::<ffi::PyGetSetDescrObject>()).d_getset;
        Ok((*definition).get.filter(|_| (*definition).closure.is_null()))
    }
}

/// Is it one of the errors that say "later"?
fn is_again(py: Python<'_>, error: &PyErr) -> bool {
    module(py).is_ok_and(|module| error.matches(py, module.again.bind(py)).unwrap_or(false))
}

/// Runs `make`, asyncio's `__init__`, which makes the SSLObject, and gives the connection its engine: the native
/// one if `native` asks for it and nothing speaks against it.
pub(super) fn choose(
    owner: &Bound<'_, PyAny>,
    connection: &Connection,
    native: bool,
    notify: crate::libssl::bio::Notify,
    make: impl FnOnce() -> PyResult<()>,
) -> PyResult<()> {
    let py = owner.py();
    let library = if native { tested(py).ok() } else { None };
    let (done, made) = match library {
        Some(_) => capture::during(make),
        None => (make(), None),
    };
    done?;
    let object = connection
        .ssl_object
        .get()
        .map_or_else(|| py.None().into_bound(py), |object| object.bind(py).clone());
    let module = module(py)?;
    // A wrapper that overrides the data path keeps it.
    let class = object.get_type();
    let own = |name: &str| -> PyResult<bool> {
        Ok(class.getattr(Fallible(name)).is_ok_and(|found| {
            module.object_class.bind(py).getattr(Fallible(name)).is_ok_and(|original| found.is(&original))
        }))
    };
    let raw = object.getattr(Fallible("_sslobj")).unwrap_or_else(|_| py.None().into_bound(py));
    let plain = own("read")? && own("write")? && raw.get_type().is(module.socket_class.bind(py));
    if let (Some(library), Some(ssl)) = (library, made)
        && plain
        && !has_message_callback(&object)
    {
        // SAFETY: the SSL was made on this thread just now; comparing it with what the socket object is tells
        // whether that object owns it, and keeps it.
        if unsafe { library.app_data(ssl) }.cast() == raw.as_ptr() {
            let io = Arc::new(Io::new(notify));
            // SAFETY: as above: `raw` owns it and is kept, and nobody else has seen it yet.
            if unsafe { library.attach(ssl, io.clone()) } {
                let raw = Slot::new(Some(raw.into()));
                connection.set_engine(Engine::Native(Native { library, ssl, io, raw }));
                return Ok(());
            }
        }
    }
    let side = if plain { &raw } else { &object };
    let (incoming, outgoing) = (owner.getattr(Fallible("_incoming"))?, owner.getattr(Fallible("_outgoing"))?);
    let bound = |object: &Bound<'_, PyAny>, name: &str| -> PyResult<Slot> {
        Ok(Slot::new(Some(object.getattr(Fallible(name))?.into())))
    };
    let exact = [&incoming, &outgoing].iter().all(|bio| bio.get_type().is(module.memory_class.bind(py)));
    connection.set_engine(Engine::Object(Object {
        read: bound(side, "read")?,
        write: bound(side, "write")?,
        feed: bound(&incoming, "write")?,
        drain: bound(&outgoing, "read")?,
        incoming: Slot::new(Some(incoming.into())),
        outgoing: Slot::new(Some(outgoing.into())),
        lends: plain && exact,
        pending: if exact { module.pending } else { None },
        fed: Cell::new(0),
    }));
    Ok(())
}

/// `SSLContext._msg_callback`, by whichever class it is.
fn has_message_callback(object: &Bound<'_, PyAny>) -> bool {
    let callback =
        object.getattr(Fallible("context")).and_then(|context| context.getattr(Fallible("_msg_callback")));
    callback.is_ok_and(|callback| !callback.is_none())
}

static TESTED: OnceLock<Result<&'static Library, String>> = OnceLock::new();

/// The library, if the self-test finds that the native engine works in this process; else the reason.
pub(super) fn tested(py: Python<'_>) -> Result<&'static Library, &'static str> {
    if let Some(known) = TESTED.get() {
        return known.as_ref().map(|library| *library).map_err(String::as_str);
    }
    let found = match self_test(py) {
        // Which says nothing of the library: the next connection tries again.
        Err(error) if error.is_instance_of::<PyMemoryError>(py) => return Err("out of memory"),
        found => found.map_err(|error| error.value(py).to_string()),
    };
    TESTED.get_or_init(|| found).as_ref().map(|library| *library).map_err(String::as_str)
}

/// Does everything that the native engine relies on once, without a peer and without a certificate.
fn self_test(py: Python<'_>) -> PyResult<&'static Library> {
    let fail = |reason: &str| exception::<PyRuntimeError>(reason);
    let file = py.import(Fallible("_ssl"))?.getattr(Fallible("__file__")).ok();
    let path = match file {
        Some(file) => Some(CString::new(file.extract::<String>()?)?),
        None => None,
    };
    let library = Library::get(path.as_deref()).map_err(fail)?;

    let ssl = py.import(Fallible("ssl"))?;
    let context =
        ssl.getattr(Fallible("SSLContext"))?.call1((ssl.getattr(Fallible("PROTOCOL_TLS_CLIENT"))?,))?;
    context.setattr(Fallible("check_hostname"), false)?;
    let memory = ssl.getattr(Fallible("MemoryBIO"))?;
    let (incoming, outgoing) = (memory.call0()?, memory.call0()?);
    let (object, made) =
        capture::during(|| context.call_method1(Fallible("wrap_bio"), (&incoming, &outgoing)));
    let object = object?;
    let ssl_pointer = made.ok_or_else(|| fail("wrap_bio makes no SSL of the libssl that was found"))?;
    let raw = object.getattr(Fallible("_sslobj"))?;
    // SAFETY: the SSL was just made, and `object` keeps it for the time of this test; nobody else knows it.
    unsafe {
        if library.app_data(ssl_pointer).cast() != raw.as_ptr() {
            return Err(fail("the SSL that was seen is not the SSLObject's"));
        }
        incoming.call_method1(Fallible("write"), (Fallible(&b"x"[..]),))?;
        if library.pending_input(ssl_pointer) != 1 {
            return Err(fail("the SSL that was seen does not read from the MemoryBIO"));
        }
    }
    let io = Arc::new(Io::new(Box::new(|| {})));
    // SAFETY: as above.
    if !unsafe { library.attach(ssl_pointer, io.clone()) } {
        return Err(fail("no BIO could be made"));
    }
    match object.call_method0(Fallible("do_handshake")) {
        Err(error) if is_again(py, &error) => {}
        Err(error) => return Err(error),
        Ok(_) => return Err(fail("a handshake without a peer came to an end")),
    }
    let hello = io.exchange_output(Vec::new(), false);
    if !hello.starts_with(&[0x16, 0x03, 0x01]) {
        return Err(fail("no ClientHello came out of the handshake"));
    }
    Ok(library)
}

/// Fails with the exception of a read.
pub(super) fn fail(exception: Ref) -> Raised {
    raise(exception);
    Raised
}
