//! The stream transport's type: how it is allocated, collected, finalised and shown.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::transport::{BASE, Parts, Stream, TYPE, stream_of};
use super::{address, clients, methods};
use crate::capi::call::guard;
use crate::capi::error::{fetch, io_error, raise_errno, undisturbed};
use crate::capi::fallible::{py_tuple, string};
use crate::capi::types::{Attribute, TypeSpec};
use crate::capi::{Fallible, sockaddr};
use crate::capi::{Raised, Ref};
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::descriptor;

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a transport without references.
    unsafe {
        if ffi::PyObject_CallFinalizerFromDealloc(object) < 0 {
            return;
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        let stream = std::ptr::from_ref(stream_of(object)).cast_mut();
        if !(*stream).weaklist.get().is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        (*stream).leave_clients();
        std::ptr::drop_in_place(stream);
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// asyncio's `__del__`: a transport that nobody closed is closed here, with a ResourceWarning.
unsafe extern "C" fn finalize(object: *mut ffi::PyObject) {
    let _ = guard(|| {
        // SAFETY: a transport that is about to die.
        let stream = unsafe { stream_of(object) };
        if stream.fd.get() < 0 {
            return 0;
        }
        if crate::capi::object::interpreter_ends() {
            stream.leave_table(stream.fd.get());
            return 0;
        }
        // SAFETY: as above.
        undisturbed(|| unsafe {
            let held = Ref::from_borrowed(object);
            let core = stream.core();
            let told = core.support("unclosed_transport", &[held.as_ptr()]);
            if told.is_err() {
                ffi::PyErr_WriteUnraisable(object);
            }
            let server = stream.server.take();
            let closed = stream.close_descriptor().and_then(|()| match server {
                Some(server) => clients::detach(&server, &held, stream.clients.take()),
                None => Ok(()),
            });
            if closed.is_err() {
                ffi::PyErr_WriteUnraisable(object);
            }
        });
        0
    });
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call for one of our transports; a heap type is visited by its instances.
    unsafe {
        let result = visit(ffi::Py_TYPE(object).cast(), argument);
        if result != 0 { result } else { stream_of(object).traverse(visit, argument) }
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for one of our transports. The loop stays: methods need it, and the
    // loop's own clear breaks the cycle.
    let stream = unsafe { stream_of(object) };
    for slot in [
        &stream.context,
        &stream.extra,
        &stream.server,
        &stream.made,
        &stream.waiter,
        &stream.empty_waiter,
        &stream.lost_with,
        &stream.dict,
    ] {
        slot.clear();
    }
    stream.leave_clients();
    stream.sending.clear(stream);
    stream.receiver.clear();
    0
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: a live transport.
        let stream = unsafe { stream_of(object) };
        let mut text = String::from("<wakeloop.StreamTransport");
        if stream.fd.get() < 0 {
            text.push_str(&format!(" closed fd={}", descriptor(stream.token.get())));
        } else if stream.closing.get() {
            text.push_str(" closing");
        }
        if stream.fd.get() >= 0 && stream.core().is_closed() {
            // Nobody polls for it any more.
            text.push_str(&format!(" fd={}", stream.fd.get()));
        } else if stream.fd.get() >= 0 {
            let awaits_data = stream.is_reading() && !stream.read_done.get();
            let read = if awaits_data && (stream.started.get() || stream.registered || stream.resuming.get())
            {
                "polling"
            } else {
                "idle"
            };
            let size = stream.buffer().len();
            let awaits_room = stream.blocked.get() && (size > 0 || !stream.sending.is_empty());
            let write = if awaits_room { "polling" } else { "idle" };
            text.push_str(&format!(" fd={} read={read} write=<{write}, bufsize={size}>", stream.fd.get()));
        }
        text.push('>');
        string(&text).map_or(null_mut(), Ref::into_ptr)
    })
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let base = py.import(Fallible("asyncio.transports"))?.getattr(Fallible("_FlowControlMixin"))?;
    let base_type = base.clone().cast_into::<pyo3::types::PyType>()?;
    // SAFETY: a live type object.
    let base_size = unsafe { (*base_type.as_type_ptr()).tp_basicsize } as usize;
    let base_size = base_size.next_multiple_of(align_of::<Stream>());
    BASE.store(base_size, Ordering::Relaxed);
    clients::learn(py)?;

    let mut attributes: Vec<Attribute> = methods::attributes();
    attributes.push(Attribute {
        name: c"__dict__",
        get: ffi::PyObject_GenericGetDict,
        set: Some(ffi::PyObject_GenericSetDict),
    });
    let spec = TypeSpec {
        name: c"wakeloop._core.StreamTransport",
        size: base_size + size_of::<Stream>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: methods::METHODS,
        attributes: &attributes,
        weaklist_offset: Some(base_size + offset_of!(Stream, weaklist)),
        dict_offset: Some(base_size + offset_of!(Stream, dict)),
        objects: &[],
        slots: &[
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_tp_finalize, finalize as *mut c_void),
            (ffi::Py_tp_traverse, traverse as *mut c_void),
            (ffi::Py_tp_clear, clear as *mut c_void),
            (ffi::Py_tp_repr, repr as *mut c_void),
        ],
        bases: Some(py_tuple(py, [base])?),
    };
    let kind = spec.build(py)?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    // SAFETY: the type was just made and lives for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, kind.cast()) })
}

/// `_make_socket_transport`'s native half.
#[pyfunction]
#[pyo3(signature = (event_loop, sock, protocol, waiter, extra, server))]
pub(crate) fn make_stream<'py>(
    py: Python<'py>,
    event_loop: &Bound<'py, EventLoop>,
    sock: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Option<Bound<'py, PyDict>>,
    server: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let core = event_loop.get().core();
    let fd: RawFd = sock.call_method0(Fallible("fileno"))?.extract()?;
    if fd < 0 {
        let Raised = raise_errno(libc::EBADF);
        return Err(fetch(py));
    }
    let mut family = libc::AF_UNSPEC;
    if sockaddr::is_plain_socket(sock.as_ptr()) {
        family = sockaddr::family(sock.as_ptr()).map_err(|Raised| fetch(py))?;
        if sockaddr::is_tcp(sock.as_ptr()).map_err(|Raised| fetch(py))? {
            address::set_nodelay(fd).map_err(|error| io_error(py, &error))?;
        }
    }
    let peer = address::name_of(fd, libc::getpeername);
    let context = crate::capi::call::copy_current_context().map_err(|Raised| fetch(py))?;
    let transport = Stream::create(
        core,
        Parts {
            fd,
            family,
            socket: Some(sock.into()),
            protocol: protocol.into(),
            context,
            waiter: waiter.map(Ref::from),
            // The caller's dict is not ours to fill.
            extra: extra.map(|extra| extra.copy()).transpose()?.map(|extra| extra.into_any().into()),
            server: server.map(Ref::from),
            sockname: None,
            peer,
            registered: None,
        },
    );
    match transport {
        Ok(transport) => Ok(transport.bind(py).clone()),
        Err(Raised) => Err(fetch(py)),
    }
}
