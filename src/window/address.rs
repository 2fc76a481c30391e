//! The addresses of a window, and their sockets.
//!
//! Each window has a Unix socket of its own, by which tools find it: `wakeloop-UID/PID` in the folder for temporary
//! files. The folder is the user's alone, and the socket too, from its first moment. A TCP address may be shared: each
//! process that was given it listens there, and the kernel chooses one for each connection. So if one ends, the others
//! go on.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{env, fs, path, process};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::socket_path::SocketPath;
use crate::bridge::io_error::{about_file, reason, told};
use crate::fork::Owner;
use crate::resolver::addresses_of;

/// How many connections wait to be accepted.
const BACKLOG: i32 = 1024;
/// A socket may be removed after so long, if nobody listens to it.
const OLD: Duration = Duration::from_secs(60);
/// The reason for which a folder is refused.
const NOT_ALONE: &str = "not a folder of this user alone";

/// An address of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    /// The name is as it was given.
    Tcp(String, SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(_, address) => address.fmt(f),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

impl Listener {
    fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Unix(listener) => Listener::Unix(listener.try_clone()?),
            Listener::Tcp(listener) => Listener::Tcp(listener.try_clone()?),
        })
    }

    /// The name that it and its connections have for the system.
    pub(super) fn name(&self) -> io::Result<SockAddr> {
        match self {
            Listener::Unix(listener) => SockRef::from(listener).local_addr(),
            Listener::Tcp(listener) => SockRef::from(listener).local_addr(),
        }
    }
}

/// The file of a socket, or the link to one, which is removed with this value, in the process that made it. So are its
/// folders, the inner one first, if nothing else is in them. A file that somebody else has put in its place stays.
#[derive(Debug)]
pub(super) struct SocketFile {
    /// Absolute: the program may change its current folder.
    path: PathBuf,
    /// The device and the number of the file.
    identity: Option<(u64, u64)>,
    folders: Vec<PathBuf>,
    owner: Owner,
}

impl SocketFile {
    /// A file that was made just now.
    fn new(path: &Path, folders: Vec<PathBuf>) -> SocketFile {
        SocketFile { path: path.to_owned(), identity: identity(path), folders, owner: Owner::this_process() }
    }

    /// It is where it was made.
    fn is_there(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }

    pub(super) fn remove(&self) {
        if self.owner.is_this_process() && self.is_there() {
            let _ = fs::remove_file(&self.path);
            self.folders.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// All that was opened: the addresses with their sockets, and the files of these. Two windows, an earlier one and the
/// one that takes its place, may have the same files.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) listeners: Vec<(Address, Listener)>,
    pub(super) files: Vec<Arc<SocketFile>>,
}

impl Opened {
    /// The same sockets once more.
    pub(super) fn try_clone(&self) -> io::Result<Opened> {
        let listeners = self.listeners.iter();
        let listeners = listeners.map(|(address, listener)| Ok((address.clone(), listener.try_clone()?)));
        Ok(Opened { listeners: listeners.collect::<io::Result<_>>()?, files: self.files.clone() })
    }

    /// Takes the listener for an address, if there is one.
    fn take(&mut self, is: impl Fn(&Address) -> bool) -> Option<Listener> {
        let index = self.listeners.iter().position(|(address, _)| is(address))?;
        Some(self.listeners.swap_remove(index).1)
    }

    /// The file at a path, if it is still there.
    fn file(&self, path: &Path) -> Option<Arc<SocketFile>> {
        self.files.iter().find(|file| file.path == path && file.is_there()).cloned()
    }
}

/// Reads what the program has given: `unix:PATH` or `HOST:PORT`, or `1` for `None`. Looks the name of a host up.
pub(super) fn parse(text: &OsStr) -> io::Result<Option<Address>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "an address is 1, unix:PATH or HOST:PORT");
    match text.as_bytes() {
        b"1" => Ok(None),
        b"unix:" => Err(wrong()),
        [b'u', b'n', b'i', b'x', b':', path @ ..] => {
            if path.contains(&0) {
                return Err(wrong());
            }
            let path = Path::new(OsStr::from_bytes(path));
            Ok(Some(Address::Unix(path::absolute(path).map_err(|error| about_file(error, path))?)))
        }
        _ => {
            let text = text.to_string_lossy();
            let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
            let name = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
            let port: u16 = port.parse().map_err(|_| wrong())?;
            if name.is_empty() {
                return Err(wrong());
            }
            let address = addresses_of(name, port)?.into_iter().next().ok_or_else(wrong)?;
            Ok(Some(Address::Tcp(name.to_owned(), address)))
        }
    }
}

/// Opens the process's own socket in its folder, and that of an address. With an address, a process that has no place
/// for its own socket does without it. `earlier` are the sockets of the window whose place the new one takes: those
/// that both have go on without a gap.
pub(super) fn open(address: Option<&Address>, folder: PathBuf, mut earlier: Opened) -> io::Result<Opened> {
    let mut opened = Opened::default();
    let own = open_own(&mut opened, &folder, &mut earlier);
    match address {
        None => own?,
        Some(Address::Unix(path)) => open_unix(&mut opened, &mut earlier, path, Vec::new())?,
        Some(Address::Tcp(name, address)) => open_tcp(&mut opened, folder, &mut earlier, name, *address)?,
    }
    Ok(opened)
}

/// The folder of the sockets of this user's processes. Reads the environment.
pub(super) fn folder() -> PathBuf {
    let given = env::temp_dir();
    // Python's `tempfile` does not take a folder that is not there, either.
    let temporary = if given.is_dir() { &given } else { Path::new("/tmp") };
    // SAFETY: the function has no conditions.
    let folder = temporary.join(format!("wakeloop-{}", unsafe { libc::geteuid() }));
    // The program may change its current folder.
    path::absolute(&folder).unwrap_or(folder)
}

/// The folder with links to the sockets of the processes that have an address.
pub(super) fn group_folder(folder: &Path, address: SocketAddr) -> PathBuf {
    folder.join(address.to_string())
}

/// Opens the process's own socket. Another process may remove the folder, because it was empty, just before the socket
/// is in it.
fn open_own(opened: &mut Opened, folder: &Path, earlier: &mut Opened) -> io::Result<()> {
    for _ in 0..10 {
        match try_own(opened, folder, earlier) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    try_own(opened, folder, earlier)
}

fn try_own(opened: &mut Opened, folder: &Path, earlier: &mut Opened) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(about_file(error, folder)),
        _ => {}
    }
    // Not through a symbolic link.
    let found = fs::symlink_metadata(folder).map_err(|error| about_file(error, folder))?;
    // SAFETY: the function has no conditions.
    let user = unsafe { libc::geteuid() };
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let error = told(io::Error::from_raw_os_error(libc::EACCES), |_| NOT_ALONE.to_owned());
        return Err(about_file(error, folder));
    }
    remove_old(folder);
    // An earlier process of this number may have left its socket, or this one before `exec`. A process of another
    // container that shares the folder keeps it.
    open_unix(opened, earlier, &folder.join(process::id().to_string()), vec![folder.to_owned()])
}

/// Removes the sockets that killed processes have left in a folder, and then the links to them.
fn remove_old(folder: &Path) {
    let paths =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().filter_map(|it| Some(it.ok()?.path()));
    let (groups, sockets): (Vec<_>, Vec<_>) = paths(folder).partition(|path| path.is_dir());
    for path in sockets {
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        // A process of another container has a number that means nothing here, but it listens.
        if number.is_some_and(has_ended) && is_old(&path) && is_left_behind(&path) {
            let _ = fs::remove_file(&path);
        }
    }
    for group in groups {
        let leads_nowhere = |link: &PathBuf| !link.exists() && is_old(link);
        paths(&group).filter(leads_nowhere).for_each(|link| drop(fs::remove_file(link)));
        // If it is empty.
        let _ = fs::remove_dir(&group);
    }
}

/// There is no process of this number here.
fn has_ended(number: libc::pid_t) -> bool {
    // SAFETY: without a signal, the function has no conditions.
    let status = unsafe { libc::kill(number, 0) };
    number > 0 && status < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// It is older than a process takes from the bind to the listen.
fn is_old(path: &Path) -> bool {
    let made = fs::symlink_metadata(path).and_then(|found| found.modified());
    let age = made.ok().and_then(|made| SystemTime::now().duration_since(made).ok());
    age.is_some_and(|age| age > OLD)
}

/// It is a socket, and nobody listens to it.
fn is_left_behind(path: &Path) -> bool {
    let is_socket =
        fs::symlink_metadata(path).is_ok_and(|found| found.mode() & libc::S_IFMT == libc::S_IFSOCK);
    is_socket && try_connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to a socket, without a wait for one whose backlog is full.
fn try_connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let short = SocketPath::new(path)?;
    socket.connect(&SockAddr::unix(&short)?)
}

fn open_unix(
    opened: &mut Opened,
    earlier: &mut Opened,
    path: &Path,
    folders: Vec<PathBuf>,
) -> io::Result<()> {
    let is = |address: &Address| matches!(address, Address::Unix(known) if known == path);
    if let Some(file) = earlier.file(path)
        && let Some(listener) = earlier.take(is)
    {
        opened.files.push(file);
        opened.listeners.push((Address::Unix(path.to_owned()), listener));
        return Ok(());
    }
    if opened.listeners.iter().any(|(address, _)| is(address)) {
        // It is the process's own socket.
        return Ok(());
    }
    // A socket that nobody listens to was left behind. Anything else stays, and the address is in use.
    if is_left_behind(path) {
        fs::remove_file(path).map_err(|error| about_file(error, path))?;
    }
    listen(opened, path, folders).map_err(|error| about_file(error, path))
}

/// Listens at a path that does not exist.
fn listen(opened: &mut Opened, path: &Path, folders: Vec<PathBuf>) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux gives the file the mode of the socket. Elsewhere it is changed before anybody can connect.
    // SAFETY: an open descriptor.
    unsafe { libc::fchmod(socket.as_raw_fd(), 0o600) };
    let short = SocketPath::new(path)?;
    let too_long = |_| io::Error::from_raw_os_error(libc::ENAMETOOLONG);
    socket.bind(&SockAddr::unix(&short).map_err(too_long)?)?;
    // Removed again if something fails.
    let file = Arc::new(SocketFile::new(path, folders));
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    opened.files.push(file);
    opened.listeners.push((Address::Unix(path.to_owned()), Listener::Unix(socket.into())));
    Ok(())
}

fn open_tcp(
    opened: &mut Opened,
    folder: PathBuf,
    earlier: &mut Opened,
    name: &str,
    address: SocketAddr,
) -> io::Result<()> {
    let same = earlier.take(|known| matches!(known, Address::Tcp(_, known) if *known == address));
    let listener = match same {
        Some(Listener::Tcp(listener)) => listener,
        _ => listen_tcp(address).map_err(|error| {
            // asyncio's text.
            told(error, |error| {
                let (host, port, reason) = (address.ip(), address.port(), reason(error).to_lowercase());
                let rest = if address.is_ipv6() { ", 0, 0" } else { "" };
                format!("error while attempting to bind on address ('{host}', {port}{rest}): {reason}")
            })
        })?,
    };
    let address = listener.local_addr()?;
    join(opened, folder, earlier, address);
    opened.listeners.push((Address::Tcp(name.to_owned(), address), Listener::Tcp(listener)));
    Ok(())
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Lets the other processes that have this address find this one's own socket, if there is one.
fn join(opened: &mut Opened, folder: PathBuf, earlier: &Opened, address: SocketAddr) {
    let Some(own) = opened.files.first().map(|file| file.path.clone()) else { return };
    let group = group_folder(&folder, address);
    let path = group.join(process::id().to_string());
    if let Some(file) = earlier.file(&path)
        && fs::read_link(&path).is_ok_and(|target| target == own)
    {
        return opened.files.push(file);
    }
    // Another process may remove the folder, because it was empty, just before the link is in it.
    for _ in 0..10 {
        // It may be there.
        let _ = fs::DirBuilder::new().mode(0o700).create(&group);
        let _ = fs::remove_file(&path);
        if symlink(&own, &path).is_ok() {
            return opened.files.push(Arc::new(SocketFile::new(&path, vec![group, folder])));
        }
    }
}
