//! tokio under the names that the scenarios use.

#[path = "../scenarios.rs"]
pub mod scenarios;

pub use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
pub use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
pub use tokio::spawn;
pub use tokio::task::{JoinHandle, spawn_blocking, yield_now};
pub use tokio::time::sleep;

use super::{Future, Kind};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

pub struct Rt(Runtime);

impl Rt {
    pub fn new(kind: Kind) -> Rt {
        let mut builder = match kind {
            Kind::Workers(_) => Builder::new_multi_thread(),
            Kind::CurrentThread => Builder::new_current_thread(),
        };
        if let Kind::Workers(workers) = kind {
            builder.worker_threads(workers);
        }
        Rt(builder.enable_all().build().expect("a runtime"))
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.0.spawn(future)
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
    tokio::time::timeout(limit, future).await.ok()
}

pub async fn join_and_select() -> u32 {
    let (a, b) = tokio::join!(async { 1 }, async { 2 });
    tokio::select! {
        biased;
        c = std::future::pending::<u32>() => c,
        c = async { a + b } => c,
    }
}

pub mod oneshot {
    pub use tokio::sync::oneshot::{Receiver, Sender, channel};

    pub fn send<T>(sender: Sender<T>, value: T) {
        let _ = sender.send(value);
    }

    pub async fn recv<T>(receiver: Receiver<T>) -> T {
        receiver.await.expect("a value")
    }
}

pub mod mpsc {
    pub use tokio::sync::mpsc::{Receiver, Sender, channel as bounded};

    pub async fn send<T>(sender: &Sender<T>, value: T) {
        let _ = sender.send(value).await;
    }

    pub async fn recv<T>(receiver: &mut Receiver<T>) -> Option<T> {
        receiver.recv().await
    }
}
