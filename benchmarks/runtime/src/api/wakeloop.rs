//! wakeloop under the names that the scenarios use.

#[path = "../scenarios.rs"]
// Streams of the peers are read through `&mut`.
#[allow(unused_mut)]
pub mod scenarios;

pub use wakeloop::runtime::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
pub use wakeloop::runtime::time::sleep;
pub use wakeloop::runtime::{JoinHandle, spawn, spawn_blocking, yield_now};

use super::{Future, Kind};
use std::time::Duration;
use wakeloop::runtime::{Builder, Handle, Runtime};

pub struct Rt {
    handle: Handle,
    _runtime: Runtime,
}

impl Rt {
    pub fn new(kind: Kind) -> Rt {
        let builder = match kind {
            Kind::Workers(workers) => Builder::new().worker_threads(workers),
            Kind::CurrentThread => Builder::new_current_thread(),
        };
        let runtime = builder.build().expect("a runtime");
        Rt { handle: runtime.handle(), _runtime: runtime }
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(future)
    }
}

pub async fn join<T>(task: JoinHandle<T>) -> T {
    task.await.expect("the task ends well")
}

pub fn detach<T>(task: JoinHandle<T>) {
    drop(task);
}

pub async fn abort(tasks: Vec<JoinHandle<()>>) {
    tasks.iter().for_each(JoinHandle::abort);
    for task in tasks {
        let _ = task.await;
    }
}

pub async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    wakeloop::runtime::time::timeout(limit, future).await.ok()
}

pub async fn join_and_select() -> u32 {
    let (a, b) = wakeloop::join!(async { 1 }, async { 2 });
    wakeloop::select! {
        c = std::future::pending::<u32>() => c,
        c = async { a + b } => c,
    }
}

pub mod oneshot {
    pub use wakeloop::runtime::sync::oneshot::{Receiver, Sender, channel};

    pub fn send<T>(sender: Sender<T>, value: T) {
        let _ = sender.send(value);
    }

    pub async fn recv<T>(receiver: Receiver<T>) -> T {
        receiver.await.expect("a value")
    }
}

pub mod mpsc {
    pub use wakeloop::runtime::sync::mpsc::{Receiver, Sender, bounded};

    pub async fn send<T>(sender: &Sender<T>, value: T) {
        let _ = sender.send(value).await;
    }

    pub async fn recv<T>(receiver: &mut Receiver<T>) -> Option<T> {
        receiver.recv().await
    }
}
