//! smol under the names that the scenarios use: its executor on as many threads, its reactor, its channels.

#[path = "../scenarios.rs"]
pub mod scenarios;

pub use futures_lite::future::yield_now;
pub use smol::Task as JoinHandle;
pub use smol::Timer as Sleep;
pub use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
pub use smol::net::unix::UnixStream;
pub use smol::net::{TcpListener, TcpStream, UdpSocket};

use super::{Future, Kind};
use futures_lite::future::{or, pending, zip};
use smol::Executor;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// What `spawn` without a runtime uses, as `smol::spawn` uses a global. One load, as there.
static CURRENT: AtomicPtr<Executor<'static>> = AtomicPtr::new(ptr::null_mut());

pub struct Rt {
    executor: Arc<Executor<'static>>,
    stop: smol::channel::Sender<()>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Rt {
    pub fn new(kind: Kind) -> Rt {
        let workers = match kind {
            Kind::Workers(workers) => workers,
            Kind::CurrentThread => 0,
        };
        let executor = Arc::new(Executor::new());
        let (stop, stopped) = smol::channel::bounded::<()>(1);
        let threads = (0..workers)
            .map(|_| {
                let (executor, stopped) = (executor.clone(), stopped.clone());
                thread::spawn(move || {
                    let _ = smol::block_on(executor.run(stopped.recv()));
                })
            })
            .collect();
        Rt { executor, stop, threads }
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        CURRENT.store(Arc::as_ptr(&self.executor).cast_mut(), Relaxed);
        smol::block_on(future)
    }

    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        CURRENT.store(Arc::as_ptr(&self.executor).cast_mut(), Relaxed);
        self.executor.spawn(future)
    }
}

impl Drop for Rt {
    fn drop(&mut self) {
        self.stop.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    // SAFETY: only called by tasks of the executor that was stored last, which its `Rt` keeps alive meanwhile.
    unsafe { &*CURRENT.load(Relaxed) }.spawn(future)
}

pub fn spawn_blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    smol::unblock(f)
}

pub fn sleep(duration: Duration) -> Sleep {
    smol::Timer::after(duration)
}

pub async fn join<T>(task: JoinHandle<T>) -> T {
    task.await
}

pub fn detach<T>(task: JoinHandle<T>) {
    task.detach();
}

pub async fn abort(tasks: Vec<JoinHandle<()>>) {
    // `cancel` asks for the end with the call and waits for it with the future.
    let ends: Vec<_> = tasks.into_iter().map(JoinHandle::cancel).collect();
    for end in ends {
        end.await;
    }
}

pub async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    // Made first: the limit counts from the call, as with the others.
    let sleep = sleep(limit);
    or(async { Some(future.await) }, async {
        sleep.await;
        None
    })
    .await
}

pub async fn join_and_select() -> u32 {
    let (a, b) = zip(async { 1 }, async { 2 }).await;
    or(pending::<u32>(), async { a + b }).await
}

pub mod oneshot {
    pub use smol::channel::{Receiver, Sender};

    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        smol::channel::bounded(1)
    }

    pub fn send<T>(sender: Sender<T>, value: T) {
        let _ = sender.try_send(value);
    }

    pub async fn recv<T>(receiver: Receiver<T>) -> T {
        receiver.recv().await.expect("a value")
    }
}

pub mod mpsc {
    pub use smol::channel::{Receiver, Sender, bounded};

    pub async fn send<T>(sender: &Sender<T>, value: T) {
        let _ = sender.send(value).await;
    }

    pub async fn recv<T>(receiver: &mut Receiver<T>) -> Option<T> {
        receiver.recv().await.ok()
    }
}
