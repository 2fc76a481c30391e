//! The path of a socket, which may be longer than an address of a socket can be: 108 bytes on Linux.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use socket2::SockAddr;

/// A path by which a socket is bound, or connected to, while this value is kept. On Linux a long one goes by the
/// descriptor of its folder; elsewhere it is refused.
#[derive(Debug)]
pub(super) struct SocketPath {
    path: PathBuf,
    _folder: Option<File>,
}

impl SocketPath {
    pub(super) fn new(path: &Path) -> io::Result<SocketPath> {
        let folder = if SockAddr::unix(path).is_ok() { None } else { open_folder(path)? };
        let path = match (&folder, path.file_name()) {
            (Some((_, folder)), Some(name)) => folder.join(name),
            _ => path.to_owned(),
        };
        Ok(SocketPath { path, _folder: folder.map(|(file, _)| file) })
    }
}

impl AsRef<Path> for SocketPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Opens the folder in which something is, and gives a short path of the folder. `None` if the system has none.
fn open_folder(path: &Path) -> io::Result<Option<(File, PathBuf)>> {
    cfg_select! {
        any(target_os = "linux", target_os = "android") => {
            use std::os::fd::AsRawFd;
            use std::os::unix::fs::OpenOptionsExt;

            let Some(folder) = path.parent() else { return Ok(None) };
            let folder = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(folder)?;
            let short = format!("/proc/self/fd/{}", folder.as_raw_fd());
            Ok(Some((folder, short.into())))
        }
        _ => {
            let _ = path;
            Ok(None)
        }
    }
}
