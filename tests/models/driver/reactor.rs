//! Stands in for the reactor in a model. No socket is ever ready and no time passes, so a wait ends only when
//! its waker is used.

use std::io;
use std::iter;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::poison::unpoisoned;
use crate::reactor::{Event, Interest, Token, Wait};
use crate::runtime::shim::{Condvar, Mutex};

pub(super) struct Poller(Arc<Bell>);

pub(super) struct Registrar;

pub(super) struct Waker(Arc<Bell>);

/// Like an eventfd: it stays rung until a wait or a look has noticed.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Poller {
    pub(super) fn with_capacity(_: usize) -> io::Result<Poller> {
        Ok(Poller(Arc::default()))
    }

    pub(super) fn registrar(&self) -> io::Result<Registrar> {
        Ok(Registrar)
    }

    pub(super) fn waker(&self, _: Token) -> io::Result<Waker> {
        Ok(Waker(self.0.clone()))
    }

    /// No thread of a model spins.
    pub(super) fn spin(&mut self, _: u64, _: impl Fn() -> u64) -> io::Result<u64> {
        Ok(0)
    }

    pub(super) fn poll(&mut self, wait: Wait) -> io::Result<()> {
        let mut rung = unpoisoned(self.0.rung.lock());
        while !*rung && wait != Wait::Not {
            rung = unpoisoned(self.0.heard.wait(rung));
        }
        *rung = false;
        Ok(())
    }

    pub(super) fn events(&self) -> impl Iterator<Item = Event> + Clone {
        iter::empty()
    }
}

impl Registrar {
    pub(super) fn register_edge(&self, _: RawFd, _: Token, _: Interest) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn deregister(&self, _: RawFd) -> io::Result<()> {
        Ok(())
    }
}

impl Waker {
    pub(super) fn wake(&self) -> io::Result<()> {
        *unpoisoned(self.0.rung.lock()) = true;
        self.0.heard.notify_one();
        Ok(())
    }
}
