//! Echo over TLS: OpenSSL on the socket itself, from the same library files that Python's `ssl` has loaded.
//!
//! It serves messages of one record, which the load sends in one piece. The sockets are blocking, so a connection that
//! sent half a record would block the others.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_long, c_void};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use crate::system::{EPOLLIN, Epoll, RTLD_GLOBAL, RTLD_NOW, dlopen, dlsym};

type Context = *mut c_void;
type Session = *mut c_void;

const FILETYPE_PEM: c_int = 1;
/// `SSL_CTX_set_read_ahead` is a macro over this control.
const CTRL_SET_READ_AHEAD: c_int = 41;

pub struct Tls {
    context: Context,
    session_new: unsafe extern "C" fn(Context) -> Session,
    session_free: unsafe extern "C" fn(Session),
    set_fd: unsafe extern "C" fn(Session, c_int) -> c_int,
    accept: unsafe extern "C" fn(Session) -> c_int,
    read: unsafe extern "C" fn(Session, *mut c_void, c_int) -> c_int,
    write: unsafe extern "C" fn(Session, *const c_void, c_int) -> c_int,
    has_pending: unsafe extern "C" fn(Session) -> c_int,
}

/// The function of this name; the caller names its type.
fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: a library that is open and a string that ends in zero.
    let found = unsafe { dlsym(library, text.as_ptr()) };
    if found.is_null() { Err(format!("{name} is not in libssl")) } else { Ok(found) }
}

fn open(path: &str) -> Result<*mut c_void, String> {
    let text = CString::new(path).map_err(|error| error.to_string())?;
    // SAFETY: a string that ends in zero; OpenSSL's libraries may be loaded at any time.
    let library = unsafe { dlopen(text.as_ptr(), RTLD_NOW | RTLD_GLOBAL) };
    if library.is_null() { Err(format!("{path} cannot be loaded")) } else { Ok(library) }
}

/// A symbol as a function; its type is that of OpenSSL's documentation.
macro_rules! function {
    ($library:expr, $name:literal, $type:ty) => {
        // SAFETY: OpenSSL declares it with this type.
        unsafe { std::mem::transmute::<*mut c_void, $type>(symbol($library, $name)?) }
    };
}

impl Tls {
    /// With the paths of libcrypto and libssl, and a certificate and its key as PEM.
    pub fn new(libcrypto: &str, libssl: &str, certificate: &str, key: &str) -> Result<Tls, String> {
        open(libcrypto)?;
        let it = open(libssl)?;
        let method = function!(it, "TLS_server_method", unsafe extern "C" fn() -> *const c_void);
        let context_new = function!(it, "SSL_CTX_new", unsafe extern "C" fn(*const c_void) -> Context);
        let control = function!(
            it,
            "SSL_CTX_ctrl",
            unsafe extern "C" fn(Context, c_int, c_long, *mut c_void) -> c_long
        );
        type File = unsafe extern "C" fn(Context, *const c_char) -> c_int;
        type TypedFile = unsafe extern "C" fn(Context, *const c_char, c_int) -> c_int;
        let use_chain = function!(it, "SSL_CTX_use_certificate_chain_file", File);
        let use_key = function!(it, "SSL_CTX_use_PrivateKey_file", TypedFile);
        let certificate = CString::new(certificate).map_err(|error| error.to_string())?;
        let key = CString::new(key).map_err(|error| error.to_string())?;
        // SAFETY: OpenSSL's own values go back to it, and the strings end in zero.
        let context = unsafe {
            let context = context_new(method());
            if context.is_null()
                || use_chain(context, certificate.as_ptr()) != 1
                || use_key(context, key.as_ptr(), FILETYPE_PEM) != 1
            {
                return Err("the certificate is not taken".into());
            }
            control(context, CTRL_SET_READ_AHEAD, 1, std::ptr::null_mut());
            context
        };
        Ok(Tls {
            context,
            session_new: function!(it, "SSL_new", unsafe extern "C" fn(Context) -> Session),
            session_free: function!(it, "SSL_free", unsafe extern "C" fn(Session)),
            set_fd: function!(it, "SSL_set_fd", unsafe extern "C" fn(Session, c_int) -> c_int),
            accept: function!(it, "SSL_accept", unsafe extern "C" fn(Session) -> c_int),
            read: function!(it, "SSL_read", unsafe extern "C" fn(Session, *mut c_void, c_int) -> c_int),
            write: function!(it, "SSL_write", unsafe extern "C" fn(Session, *const c_void, c_int) -> c_int),
            has_pending: function!(it, "SSL_has_pending", unsafe extern "C" fn(Session) -> c_int),
        })
    }

    pub fn serve(&self, listener: TcpListener) -> io::Result<()> {
        let mut epoll = Epoll::new()?;
        epoll.add(listener.as_raw_fd(), EPOLLIN)?;
        let mut connections: HashMap<RawFd, (TcpStream, Session)> = HashMap::new();
        let mut buffer = vec![0u8; 64 * 1024];
        let mut fresh = Vec::new();
        loop {
            for event in epoll.wait() {
                let fd = event.fd();
                if fd == listener.as_raw_fd() {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    fresh.push(stream);
                } else if let Some(&(_, session)) = connections.get(&fd)
                    && !self.echo(session, &mut buffer)
                {
                    connections.remove(&fd);
                    // SAFETY: made by `handshake` and nobody else's.
                    unsafe { (self.session_free)(session) };
                }
            }
            for stream in fresh.drain(..) {
                // A message may have arrived with the end of the handshake; epoll does not report what OpenSSL holds.
                if let Some(session) = self.handshake(stream.as_raw_fd())
                    && (!self.holds_more(session) || self.echo(session, &mut buffer))
                {
                    epoll.add(stream.as_raw_fd(), EPOLLIN)?;
                    connections.insert(stream.as_raw_fd(), (stream, session));
                }
            }
        }
    }

    fn handshake(&self, fd: RawFd) -> Option<Session> {
        // SAFETY: a live context, a session of its own, an open blocking socket.
        unsafe {
            let session = (self.session_new)(self.context);
            if (self.set_fd)(session, fd) == 1 && (self.accept)(session) == 1 {
                return Some(session);
            }
            (self.session_free)(session);
            None
        }
    }

    fn holds_more(&self, session: Session) -> bool {
        // SAFETY: a live session.
        unsafe { (self.has_pending)(session) == 1 }
    }

    /// Echoes all records that have arrived. False: the connection is over.
    fn echo(&self, session: Session, buffer: &mut [u8]) -> bool {
        loop {
            // SAFETY: a live session, and a buffer of the length that is given.
            let answered = unsafe {
                let count = (self.read)(session, buffer.as_mut_ptr().cast(), buffer.len() as c_int);
                count > 0 && (self.write)(session, buffer.as_ptr().cast(), count) == count
            };
            if !answered || !self.holds_more(session) {
                return answered;
            }
        }
    }
}
