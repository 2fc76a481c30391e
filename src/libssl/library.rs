//! The functions of libssl that this crate calls.

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::sync::OnceLock;

/// An `SSL*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ssl(pub(super) *mut c_void);

/// A `BIO*`.
pub(super) type Bio = *mut c_void;
/// A `BIO_METHOD*`.
pub(super) type BioMethod = *mut c_void;

pub(super) type BioRead = unsafe extern "C" fn(Bio, *mut c_char, usize, *mut usize) -> c_int;
pub(super) type BioWrite = unsafe extern "C" fn(Bio, *const c_char, usize, *mut usize) -> c_int;
pub(super) type BioCtrl = unsafe extern "C" fn(Bio, c_int, c_long, *mut c_void) -> c_long;
pub(super) type BioDestroy = unsafe extern "C" fn(Bio) -> c_int;
/// `CRYPTO_EX_new`.
pub(super) type NewFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, c_int, c_long, *mut c_void);

macro_rules! functions {
    ($($(#[$attribute:meta])* $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by their C names.
        #[allow(non_snake_case, reason = "named like the functions they point to")]
        #[derive(Debug)]
        pub(super) struct Functions {
            $($(#[$attribute])* pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// # Safety
            /// `handle` is a loaded library whose functions of these names are OpenSSL's.
            pub(super) unsafe fn find(handle: *mut c_void) -> Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a live handle and a C string.
                        let address = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
                        if address.is_null() {
                            return Err(format!("{} is missing", stringify!($name)));
                        }
                        // SAFETY: the caller promises that it is OpenSSL's function, which has this signature.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    SSL_read_ex(*mut c_void, *mut c_void, usize, *mut usize) -> c_int;
    SSL_write_ex(*mut c_void, *const c_void, usize, *mut usize) -> c_int;
    SSL_get_error(*const c_void, c_int) -> c_int;
    SSL_set_read_ahead(*mut c_void, c_int);
    SSL_ctrl(*mut c_void, c_int, c_long, *mut c_void) -> c_long;
    SSL_free_buffers(*mut c_void) -> c_int;
    SSL_get_rbio(*const c_void) -> Bio;
    SSL_set_bio(*mut c_void, Bio, Bio);
    SSL_get_ex_data(*const c_void, c_int) -> *mut c_void;
    ERR_peek_error() -> c_ulong;
    ERR_clear_error();
    CRYPTO_get_ex_new_index(c_int, c_long, *mut c_void, NewFunction, *mut c_void, *mut c_void) -> c_int;
    OpenSSL_version_num() -> c_ulong;
    BIO_get_new_index() -> c_int;
    BIO_meth_new(c_int, *const c_char) -> BioMethod;
    BIO_meth_set_read_ex(BioMethod, BioRead) -> c_int;
    BIO_meth_set_write_ex(BioMethod, BioWrite) -> c_int;
    BIO_meth_set_ctrl(BioMethod, BioCtrl) -> c_int;
    BIO_meth_set_destroy(BioMethod, BioDestroy) -> c_int;
    BIO_new(BioMethod) -> Bio;
    BIO_set_data(Bio, *mut c_void);
    BIO_get_data(Bio) -> *mut c_void;
    BIO_set_init(Bio, c_int);
    BIO_set_flags(Bio, c_int);
    BIO_clear_flags(Bio, c_int);
    BIO_ctrl(Bio, c_int, c_long, *mut c_void) -> c_long;
}

/// The outcome of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The number of bytes that were read or written.
    Done(usize),
    /// OpenSSL needs data from the peer first.
    WantRead,
    /// The peer has sent close_notify.
    Closed,
    /// Any other error. It is still in OpenSSL's error queue.
    Failed,
}

const SSL_ERROR_WANT_READ: c_int = 2;
const SSL_ERROR_WANT_WRITE: c_int = 3;
const SSL_ERROR_ZERO_RETURN: c_int = 6;
/// The command of `BIO_ctrl` that returns the number of unread bytes.
pub(super) const CTRL_PENDING: c_int = 10;

/// The process's libssl, set up for use.
#[derive(Debug)]
pub(crate) struct Library {
    pub(super) functions: &'static Functions,
    pub(super) method: usize,
}

/// The functions. They are static because a BIO's callbacks need them too.
pub(super) static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

impl Library {
    /// Empties the error queue of this thread. Errors in it after the next call then belong to that call.
    #[inline(always)]
    pub(crate) fn clear_errors(&self) {
        // SAFETY: no arguments. Peeking costs a tenth of clearing, and the queue is almost always empty.
        unsafe {
            if (self.functions.ERR_peek_error)() != 0 {
                (self.functions.ERR_clear_error)();
            }
        }
    }

    /// Decrypts into `room`, a pointer and a size. The memory need not be initialised.
    ///
    /// # Safety
    /// `ssl` is alive, no other thread uses it, and the room is valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, ssl: Ssl, room: (*mut u8, usize)) -> Outcome {
        let mut count = 0;
        // SAFETY: the caller's promise.
        let result = unsafe { (self.functions.SSL_read_ex)(ssl.0, room.0.cast(), room.1, &mut count) };
        if result > 0 { Outcome::Done(count) } else { self.outcome(ssl, result) }
    }

    /// Encrypts `data`, either all of it or nothing.
    ///
    /// # Safety
    /// `ssl` is alive, and no other thread uses it.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, ssl: Ssl, data: &[u8]) -> Outcome {
        let mut count = 0;
        // SAFETY: the caller's promise.
        let result =
            unsafe { (self.functions.SSL_write_ex)(ssl.0, data.as_ptr().cast(), data.len(), &mut count) };
        if result > 0 { Outcome::Done(count) } else { self.outcome(ssl, result) }
    }

    fn outcome(&self, ssl: Ssl, result: c_int) -> Outcome {
        // SAFETY: this runs right after the failed call, on the same thread.
        match unsafe { (self.functions.SSL_get_error)(ssl.0, result) } {
            SSL_ERROR_WANT_READ | SSL_ERROR_WANT_WRITE => Outcome::WantRead,
            SSL_ERROR_ZERO_RETURN => Outcome::Closed,
            _ => Outcome::Failed,
        }
    }

    /// The application data of `ssl` (`SSL_get_app_data`).
    ///
    /// # Safety
    /// `ssl` is alive.
    pub(crate) unsafe fn app_data(&self, ssl: Ssl) -> *mut c_void {
        // SAFETY: the caller's promise; index 0 is the application data.
        unsafe { (self.functions.SSL_get_ex_data)(ssl.0, 0) }
    }

    /// How many bytes are unread in the BIO that `ssl` reads from.
    ///
    /// # Safety
    /// `ssl` is alive.
    pub(crate) unsafe fn pending_input(&self, ssl: Ssl) -> c_long {
        // SAFETY: the caller's promise; the calls change nothing.
        unsafe {
            let bio = (self.functions.SSL_get_rbio)(ssl.0);
            if bio.is_null() {
                return -1;
            }
            (self.functions.BIO_ctrl)(bio, CTRL_PENDING, 0, std::ptr::null_mut())
        }
    }
}
