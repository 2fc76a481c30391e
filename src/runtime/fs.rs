//! Files, through the blocking pool: the system has no readiness for regular files, so a read blocks until it
//! is done.
//!
//! Each call is one job that owns what it needs. Dropping the future of a job that has begun does not stop it.

use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::blocking::{NoThread, spawn_blocking};
use super::task::JoinError;

/// Reads the whole file.
///
/// # Errors
/// Those of `open(2)` and `read(2)`.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref().to_owned();
    job(move || fs::read(path)).await
}

/// Reads the whole file as text.
///
/// # Errors
/// As [`read`]; `InvalidData` if it is not UTF-8.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref().to_owned();
    job(move || fs::read_to_string(path)).await
}

/// Replaces the file's content, or creates it.
///
/// # Errors
/// Those of `open(2)` and `write(2)`; then the content is unspecified.
pub async fn write(path: impl AsRef<Path>, data: impl Into<Vec<u8>>) -> io::Result<()> {
    let (path, data) = (path.as_ref().to_owned(), data.into());
    job(move || fs::write(path, data)).await
}

/// Returns the metadata of a path, following symbolic links.
///
/// # Errors
/// Those of `stat(2)`.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref().to_owned();
    job(move || fs::metadata(path)).await
}

/// Renames a file, replacing any file with the new name.
///
/// # Errors
/// Those of `rename(2)`.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    job(move || fs::rename(from, to)).await
}

/// Removes a file.
///
/// # Errors
/// Those of `unlink(2)`.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    job(move || fs::remove_file(path)).await
}

/// Creates a directory and its parents.
///
/// # Errors
/// Those of `mkdir(2)`, except if the directory exists.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    job(move || fs::create_dir_all(path)).await
}

/// The initial capacity for long reads: `len` may be far beyond the file's end.
const FIRST: usize = 1 << 20;

/// An open file. It has no position: reads and writes name their offset. Clones share the descriptor.
///
/// ```
/// use wakeloop::runtime::{Runtime, fs};
///
/// let rt = Runtime::new()?;
/// let path = std::env::temp_dir().join(format!("wakeloop-doc-{}", std::process::id()));
/// rt.block_on(async {
///     let file = fs::File::create(&path).await?;
///     file.write_all_at(0, "hello, world").await?;
///     assert_eq!(file.read_at(7, 100).await?, b"world");
///     fs::remove_file(&path).await
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct File(Arc<fs::File>);

impl File {
    /// Opens for reading.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        File::open_with(path, OpenOptions::new().read(true).clone()).await
    }

    /// Opens for reading and writing, and creates or truncates the file.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).clone();
        File::open_with(path, options).await
    }

    /// Opens with the given options.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub async fn open_with(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<File> {
        let path = path.as_ref().to_owned();
        job(move || options.open(path)).await.map(|file| File(Arc::new(file)))
    }

    /// Reads up to `len` bytes from `offset`; fewer only at the end of the file. The buffer grows with what is
    /// read, so a `len` far beyond the end of the file costs little.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let file = self.0.clone();
        job(move || {
            let mut data = vec![0; len.min(FIRST)];
            let mut got = 0;
            while got < len {
                if got == data.len() {
                    data.resize(len.min(2 * got), 0);
                }
                match file.read_at(&mut data[got..], offset + got as u64) {
                    Ok(0) => break,
                    Ok(n) => got += n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            data.truncate(got);
            Ok(data)
        })
        .await
    }

    /// Writes all of `data` at `offset`; the file grows as needed.
    ///
    /// # Errors
    /// Those of `pwrite(2)`; then an unknown part was written.
    pub async fn write_all_at(&self, offset: u64, data: impl Into<Vec<u8>>) -> io::Result<()> {
        let (file, data) = (self.0.clone(), data.into());
        job(move || file.write_all_at(&data, offset)).await
    }

    /// Truncates or extends the file.
    ///
    /// # Errors
    /// Those of `ftruncate(2)`.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let file = self.0.clone();
        job(move || file.set_len(len)).await
    }

    /// Waits until the disk has all data.
    ///
    /// # Errors
    /// Those of `fsync(2)`.
    pub async fn sync_all(&self) -> io::Result<()> {
        let file = self.0.clone();
        job(move || file.sync_all()).await
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let file = self.0.clone();
        job(move || file.metadata()).await
    }
}

async fn job<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    match spawn_blocking(f).await {
        Ok(result) => result,
        Err(JoinError::Cancelled) => Err(NoThread.into()),
        Err(JoinError::Panic(panic)) => panic.resume(),
    }
}
