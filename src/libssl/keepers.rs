//! The record buffers of an `SSL`: let go after every record, or kept for the next one.
//!
//! CPython has OpenSSL free a connection's two buffers, 17 KiB each, whenever they are empty
//! (SSL_MODE_RELEASE_BUFFERS). That is what makes an idle connection cheap, and of a busy one with small messages it
//! takes 5 % of the instructions. So the [`PLACES`] connections of a thread that were busy last keep theirs; one that
//! was quiet for [`QUIET`](super::buffers) turns makes room for another. With large messages they are better freed: what OpenSSL gets
//! anew is what it has just let go, and still in the cache.
//!
//! All of this happens with the GIL held, with which CPython also frees an `SSL`. But CPython gives up the GIL while it has
//! OpenSSL read or write, and a connection whose loop has moved to another thread still has its place in the list of the
//! thread before: that thread may release its buffers at any time. It must not while OpenSSL works on them. So whatever
//! runs OpenSSL between the handshake and the shutdown runs within [`Buffers::during`], and from the shutdown on the
//! buffers stay as they are ([`Buffers::forget`]).

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

/// How many connections of a thread keep their buffers: half a megabyte at most.
const PLACES: usize = 16;
/// More ciphertext than this is more than one record.
const SMALL: usize = 16 * 1024;

/// Who keeps buffers on this thread, and who is asked next whether it still needs them.
struct Keepers {
    places: [Weak<Io>; PLACES],
    next: usize,
}

thread_local! {
    static KEEPERS: RefCell<Keepers> =
        const { RefCell::new(Keepers { places: [const { Weak::new() }; PLACES], next: 0 }) };
}

impl Library {
    /// The handshake of `ssl`, which reads from `io`, is over. From here on it is given a record in one piece, header
    /// and body, and never more, whatever it has room for: what comes after a close_notify is not TLS. It can keep its
    /// buffers from here on.
    ///
    /// # Safety
    /// `ssl` is alive, and no other thread uses it.
    pub(crate) unsafe fn established(&self, ssl: Ssl, io: &Io) {
        io.begin_record();
        // SAFETY: the caller's word. The second call is a question.
        let mode = unsafe {
            (self.functions.SSL_set_read_ahead)(ssl.0, 1);
            (self.functions.SSL_ctrl)(ssl.0, CTRL_MODE, 0, null_mut())
        };
        if mode & MODE_RELEASE_BUFFERS != 0 {
            io.buffers.ssl.store(ssl.0, Ordering::Relaxed);
        }
    }

    /// A message of so many bytes is about to be read in this turn of the loop.
    #[inline(always)]
    pub(crate) fn reads(&self, io: &Arc<Io>, size: usize, turn: u64) {
        let buffers = &io.buffers;
        match (buffers.kept.load(Ordering::Relaxed), size <= SMALL) {
            (true, true) => buffers.used_in.store(turn, Ordering::Relaxed),
            (false, true) => self.keep(io, turn),
            (true, false) => self.release(io),
            (false, false) => {}
        }
    }

    /// Keeps the buffers of `io` if a place is free, or if the one that is asked next was quiet.
    #[inline(never)]
    fn keep(&self, io: &Arc<Io>, turn: u64) {
        let ssl = io.buffers.ssl.load(Ordering::Relaxed);
        if ssl.is_null() {
            return;
        }
        KEEPERS.with_borrow_mut(|keepers| {
            let place = &mut keepers.places[keepers.next];
            keepers.next = (keepers.next + 1) % PLACES;
            if let Some(other) = place.upgrade()
                && other.buffers.kept.load(Ordering::Relaxed)
            {
                if !other.buffers.is_quiet(turn) {
                    return;
                }
                self.release(&other);
            }
            *place = Arc::downgrade(io);
            // SAFETY: it is alive while it is known. OpenSSL 3.2 and later pass the mode on to what reads and
            // writes only when some of it is set.
            unsafe {
                (self.functions.SSL_ctrl)(ssl, CTRL_CLEAR_MODE, MODE_RELEASE_BUFFERS, null_mut());
                (self.functions.SSL_ctrl)(ssl, CTRL_MODE, 0, null_mut());
            }
            io.buffers.kept.store(true, Ordering::Relaxed);
            io.buffers.used_in.store(turn, Ordering::Relaxed);
        });
    }

    /// Lets the buffers go, now and after every record.
    #[inline(never)]
    fn release(&self, io: &Io) {
        let ssl = io.buffers.ssl.load(Ordering::Relaxed);
        io.buffers.kept.store(false, Ordering::Relaxed);
        if !ssl.is_null() {
            // SAFETY: it is alive while it is known, and OpenSSL is not at work on it. Buffers that are not empty stay.
            unsafe {
                (self.functions.SSL_ctrl)(ssl, CTRL_MODE, MODE_RELEASE_BUFFERS, null_mut());
                (self.functions.SSL_free_buffers)(ssl);
            }
        }
    }
}
