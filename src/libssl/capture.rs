//! Finds the `SSL*` that CPython creates for an `ssl.SSLObject`.
//!
//! `SSL_new` calls the `new_func` of every ex_data index, with the `SSL*` as the parent. This is public API, so it does
//! not depend on CPython's private structures. Our `new_func` records the pointer while this thread runs [`during`].

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;

use super::library::{Functions, Ssl};

/// `CRYPTO_EX_INDEX_SSL`.
const CLASS: c_int = 0;

/// The `SSL`s that this thread has created during the current capture.
#[derive(Clone, Copy)]
struct Seen {
    count: u32,
    last: *mut c_void,
}

thread_local! {
    /// `None` outside of [`during`]. It has no destructor, so that it can be used while the thread exits.
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
}

unsafe extern "C" fn new_func(
    parent: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: c_int,
    _: c_long,
    _: *mut c_void,
) {
    SEEN.with(|seen| {
        if let Some(before) = seen.get() {
            seen.set(Some(Seen { count: before.count.saturating_add(1), last: parent }));
        }
    });
}

/// Registers `new_func` for the rest of the process.
pub(super) fn install(functions: &Functions) -> Result<(), String> {
    // SAFETY: `new_func` is a function of this library, which is never unloaded.
    let index = unsafe {
        (functions.CRYPTO_get_ex_new_index)(CLASS, 0, null_mut(), new_func, null_mut(), null_mut())
    };
    if index < 0 { Err("OpenSSL has no free ex_data index".to_owned()) } else { Ok(()) }
}

/// Runs `body` and returns the `SSL` that it has created on this thread: `None` if it created none, or several.
pub(crate) fn during<T>(body: impl FnOnce() -> T) -> (T, Option<Ssl>) {
    /// Restores the outer capture, also if `body` panics. Captures nest.
    struct Restore(Option<Seen>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SEEN.set(self.0);
        }
    }
    let restore = Restore(SEEN.replace(Some(Seen { count: 0, last: null_mut() })));
    let result = body();
    let seen = SEEN.get();
    drop(restore);
    let made = seen.filter(|seen| seen.count == 1 && !seen.last.is_null()).map(|seen| Ssl(seen.last));
    (result, made)
}
