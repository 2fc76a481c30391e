//! Learning the `SSL*` of an object that Python code makes.
//!
//! OpenSSL calls the `new_func` of every ex_data index inside `SSL_new`, with the `SSL*` as its parent: public
//! API, whatever the objects around it look like. Ours notes the pointer if this thread has asked for it.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;

use super::library::{Functions, Ssl};

/// `CRYPTO_EX_INDEX_SSL`.
const CLASS: c_int = 0;

/// What was made on this thread since it began to listen.
#[derive(Clone, Copy)]
struct Seen {
    count: u32,
    last: *mut c_void,
}

thread_local! {
    /// `None` while nobody listens. Without a destructor, so that it can be reached at any time.
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

/// Has OpenSSL tell of every new `SSL`, for the rest of the process.
pub(super) fn listen(functions: &Functions) -> Result<(), String> {
    // SAFETY: `new_func` is a function of this library, which is never unloaded.
    let index = unsafe {
        (functions.CRYPTO_get_ex_new_index)(CLASS, 0, null_mut(), new_func, null_mut(), null_mut())
    };
    if index < 0 { Err("no ex_data index is left".to_owned()) } else { Ok(()) }
}

/// Runs `body` and tells which `SSL` it has made on this thread: `None` if it made none, or more than one.
pub(crate) fn during<T>(body: impl FnOnce() -> T) -> (T, Option<Ssl>) {
    /// Puts back what was there, however `body` ends: captures nest.
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
