//! Stopping a task from outside: `abort` asks, the await confirms, and the future's own drop cleans up.
//!
//! `cargo run --example cancel --no-default-features`

use std::time::Duration;

use wakeloop::runtime::time::sleep;
use wakeloop::runtime::{self, Runtime};

struct Connection;

impl Drop for Connection {
    fn drop(&mut self) {
        println!("connection closed");
    }
}

fn main() -> std::io::Result<()> {
    let rt = Runtime::new()?;
    rt.block_on(async {
        let task = runtime::spawn(async {
            let _connection = Connection;
            for n in 1.. {
                println!("tick {n}");
                sleep(Duration::from_millis(10)).await;
            }
        });
        sleep(Duration::from_millis(35)).await;
        task.abort();
        // A worker drops the future, at its next await. Only after this await is it certain that it was
        // dropped.
        match task.await {
            Ok(()) => unreachable!("it ticks for ever"),
            Err(error) => println!("{error}"),
        }
        // A panic is caught in the task, and reported to the task that awaits it.
        let error = runtime::spawn(async { panic!("on purpose") }).await.unwrap_err();
        println!("{error}");
    });
    // The remaining tasks are dropped. A thread that does not return in time is left behind.
    drop(rt.spawn(async {
        let _connection = Connection;
        std::future::pending::<()>().await;
    }));
    let ended = rt.shutdown_timeout(Duration::from_secs(1));
    println!("all threads ended: {ended}");
    Ok(())
}
