//! Decides which connections retain the record buffers of their `SSL` between two records.
//!
//! CPython sets SSL_MODE_RELEASE_BUFFERS, so OpenSSL frees a connection's two buffers (17 KiB each) whenever they are
//! empty. This saves memory on idle connections, but on a busy connection with small messages it costs 5 % of the
//! instructions. So up to [`MAX_RETAINED`] busy connections of a thread retain their buffers. One that was quiet for
//! [`QUIET`](super::buffers) loop iterations gives way to another. With large messages it is faster to free the
//! buffers, because the allocator then returns memory that is still in the cache.
//!
//! All of this happens with the GIL held, and CPython also frees an `SSL` with the GIL held. But CPython releases the
//! GIL while OpenSSL reads or writes. If a loop has moved to another thread, its connections are still in the list of
//! the previous thread, which may free their buffers at any time. It must not do that while OpenSSL uses them. So every
//! call of OpenSSL between the handshake and the shutdown is made within `Buffers::call_openssl`, and from the
//! shutdown on the buffers stay as they are (`Buffers::forget`). On a free-threaded build that would not be enough, and
//! no connection retains its buffers.

use std::cell::RefCell;
use std::ffi::{c_int, c_long};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::bio::Io;
use super::library::{Library, Ssl};

const CTRL_MODE: c_int = 33;
const CTRL_CLEAR_MODE: c_int = 78;
const MODE_RELEASE_BUFFERS: c_long = 0x10;

/// How many connections of a thread retain their buffers: at most half a megabyte.
const MAX_RETAINED: usize = 16;
/// Buffers are retained only for receives of at most this size.
const SMALL: usize = 16 * 1024;

/// The connections of this thread that retain their buffers.
struct Retained {
    connections: [Weak<Io>; MAX_RETAINED],
    next: usize,
}

thread_local! {
    static RETAINED: RefCell<Retained> =
        const { RefCell::new(Retained { connections: [const { Weak::new() }; MAX_RETAINED], next: 0 }) };
}

impl Library {
    /// The handshake of `ssl`, which reads from `io`, is over. From now on OpenSSL reads ahead, so that it reads a
    /// record's header and body in one call. The BIO never gives it more than one record, because the bytes after a
    /// close_notify are not TLS. From now on the connection may retain its buffers.
    ///
    /// # Safety
    /// `ssl` is alive, and no other thread uses it.
    pub(crate) unsafe fn established(&self, ssl: Ssl, io: &Io) {
        io.begin_record();
        // SAFETY: the caller's promise. The second call changes nothing: it returns the mode.
        let mode = unsafe {
            (self.functions.SSL_set_read_ahead)(ssl.0, 1);
            (self.functions.SSL_ctrl)(ssl.0, CTRL_MODE, 0, null_mut())
        };
        if mode & MODE_RELEASE_BUFFERS != 0 && !cfg!(Py_GIL_DISABLED) {
            io.buffers.ssl.store(ssl.0, Ordering::Relaxed);
        }
    }

    /// Decides about the buffers of `io` before a receive of `size` bytes is decrypted in this loop iteration.
    #[inline(always)]
    pub(crate) fn before_read(&self, io: &Arc<Io>, size: usize, turn: u64) {
        let buffers = &io.buffers;
        match (buffers.retained.load(Ordering::Relaxed), size <= SMALL) {
            (true, true) => buffers.used_in.store(turn, Ordering::Relaxed),
            (false, true) => self.retain(io, turn),
            (true, false) => self.release(io),
            (false, false) => {}
        }
    }

    /// Retains the buffers of `io`, if the next entry of the list is free or belongs to a quiet connection.
    #[inline(never)]
    fn retain(&self, io: &Arc<Io>, turn: u64) {
        let ssl = io.buffers.ssl.load(Ordering::Relaxed);
        if ssl.is_null() {
            return;
        }
        RETAINED.with_borrow_mut(|retained| {
            let entry = &mut retained.connections[retained.next];
            retained.next = (retained.next + 1) % MAX_RETAINED;
            if let Some(other) = entry.upgrade()
                && other.buffers.retained.load(Ordering::Relaxed)
            {
                if !other.buffers.is_quiet(turn) {
                    return;
                }
                self.release(&other);
            }
            *entry = Arc::downgrade(io);
            // SAFETY: the SSL is alive as long as its pointer is stored. OpenSSL 3.2 and later apply a cleared mode to
            // their record layer only with the next call that sets a mode. So the second call sets none.
            unsafe {
                (self.functions.SSL_ctrl)(ssl, CTRL_CLEAR_MODE, MODE_RELEASE_BUFFERS, null_mut());
                (self.functions.SSL_ctrl)(ssl, CTRL_MODE, 0, null_mut());
            }
            io.buffers.retained.store(true, Ordering::Relaxed);
            io.buffers.used_in.store(turn, Ordering::Relaxed);
        });
    }

    /// Frees the buffers now, and lets OpenSSL free them after every record.
    #[inline(never)]
    fn release(&self, io: &Io) {
        let ssl = io.buffers.ssl.load(Ordering::Relaxed);
        io.buffers.retained.store(false, Ordering::Relaxed);
        if !ssl.is_null() {
            // SAFETY: the SSL is alive as long as its pointer is stored, and no thread is within an OpenSSL call for
            // it. OpenSSL leaves buffers that are not empty.
            unsafe {
                (self.functions.SSL_ctrl)(ssl, CTRL_MODE, MODE_RELEASE_BUFFERS, null_mut());
                (self.functions.SSL_free_buffers)(ssl);
            }
        }
    }
}
