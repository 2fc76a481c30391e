//! Decides how a listener shares the connections of its socket with other processes.
//!
//! A listener of one process does not change. If several processes listen on one socket (the workers of a server):
//!
//! - Each has an exclusive registration, so a connection wakes one of them: the first one in the socket's wait queue
//!   that waits. It accepts one connection, and goes to the end of the queue. So idle processes take turns.
//! - If connections come faster than the processes wake up, all are awake, and those that the system runs first would
//!   take most. So a listener that has just accepted, and whose process has more connections than another one, pauses
//!   for a moment. If connections still wait after that, the others are busy, and it accepts some of them, more after
//!   each pause. If the connections of the others have not changed after many pauses, it no longer gives way: they do not
//!   run.
//! - A process can end or be stopped after it was woken and before it accepts. So each listener tries to accept twice
//!   a second without being woken.
//! - A process whose GIL is kept by a computing thread is woken, and cannot accept. So its registration is not exclusive
//!   meanwhile: a connection that wakes it wakes another process too.
//!
//! The processes find each other by what they publish ([`shared_load`](super::shared_load)).

use std::cell::Cell;
use std::os::fd::RawFd;
use std::time::Duration;

use super::shared_load::{Other, SharedLoad, has_others, with_less};

/// How long a listener gives way to other processes.
pub(super) const PAUSE: Duration = Duration::from_micros(500);
/// How often it tries to accept without being woken.
pub(super) const PERIOD: Duration = Duration::from_millis(500);
/// It looks for other processes at most once in this time, in nanoseconds.
const LOOK: u64 = 10_000_000;
/// It gives way to a process that has fewer connections by more than this, and a sixteenth of its own.
const SLACK: u32 = 2;
/// It gives way so many times in a period to processes whose connections do not change.
const PATIENCE: u32 = 20;
/// After this many pauses in a row it accepts one connection more after each of them.
const RAMP: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Sharing {
    load: SharedLoad,
    /// When it has last looked for other processes, and until when there is no need to if it has found none.
    looked: Cell<u64>,
    alone_until: Cell<u64>,
    /// The last turn in which it has accepted, or ended a pause; 0 if there was an event since.
    last_turn: Cell<u64>,
    /// How many pauses it has made in a row, and how many connections it may still accept after the last one.
    pauses: Cell<u32>,
    allowed: Cell<u32>,
    /// The last process that had fewer connections.
    other: Cell<Option<Other>>,
    /// How many pauses it has made in this period, since it has last seen such a process open or close connections.
    waits: Cell<u32>,
}

impl Sharing {
    /// Is it certain enough that no other process shares the socket?
    #[inline(always)]
    pub(super) fn is_alone(&self, now: u64) -> bool {
        now < self.alone_until.get()
    }

    pub(super) fn is_look_due(&self, now: u64) -> bool {
        now.wrapping_sub(self.looked.get()) >= LOOK
    }

    /// Does another process share the socket?
    pub(super) fn look(&self, fd: RawFd, now: u64) -> bool {
        self.looked.set(now);
        self.load.publish_again(fd);
        let shares = has_others(fd);
        self.alone_until.set(if shares { 0 } else { now + LOOK });
        shares
    }

    /// It may give way again to a process that did not run.
    pub(super) fn forgive(&self) {
        self.waits.set(0);
    }

    /// The listener has ended.
    pub(super) fn end(&self, fd: RawFd) {
        self.load.withdraw(fd);
    }

    /// It has accepted a connection or ended a pause. If the next turn has an event, the connection waited already.
    pub(super) fn note_turn(&self, turn: u64) {
        self.last_turn.set(turn);
    }

    /// Should it leave the connection that waits to other processes for a moment? `load` is the number of connections
    /// of this process, if that is known.
    pub(super) fn gives_way(&self, fd: RawFd, turn: u64, load: Option<u32>) -> bool {
        self.load.publish(fd, load.unwrap_or(u32::MAX));
        let waited = self.last_turn.replace(0).wrapping_add(1) == turn;
        let limit = load.map_or(0, |load| load.saturating_sub(load / 16 + SLACK));
        let other = if waited { with_less(fd, limit) } else { None };
        if other.is_some_and(|other| self.other.replace(Some(other)).is_some_and(|before| other.runs(before)))
        {
            self.waits.set(0);
        }
        if other.is_none() || self.waits.get() >= PATIENCE {
            self.pauses.set(0);
            self.allowed.set(0);
            return false;
        }
        if let Some(left) = self.allowed.get().checked_sub(1) {
            self.allowed.set(left);
            return false;
        }
        self.waits.set(self.waits.get() + 1);
        self.pauses.set(self.pauses.get() + 1);
        self.allowed.set(self.pauses.get().div_ceil(RAMP));
        true
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Stands for another process: its locks belong to an open file description, and so conflict with this process's.
    struct OtherProcess(File);

    impl OtherProcess {
        fn call(&self, command: libc::c_int, kind: libc::c_int, start: i64) -> libc::flock {
            let mut record = libc::flock {
                l_type: kind as _,
                l_whence: libc::SEEK_SET as _,
                l_start: start as _,
                l_len: 0,
                l_pid: 0,
            };
            // SAFETY: `record` is valid for the call.
            assert_eq!(unsafe { libc::fcntl(self.0.as_raw_fd(), command, &mut record) }, 0);
            record
        }

        fn publishes(&self, load: u32) {
            self.call(libc::F_OFD_SETLK, libc::F_UNLCK, 0);
            self.call(libc::F_OFD_SETLK, libc::F_RDLCK, load.into());
        }

        /// Does it find another process?
        fn sees_others(&self) -> bool {
            self.call(libc::F_OFD_GETLK, libc::F_WRLCK, 0).l_type as libc::c_int != libc::F_UNLCK
        }
    }

    /// A file in place of the socket, once for this process and once for another one.
    fn shared_file(name: &str) -> (File, OtherProcess) {
        let path = std::env::temp_dir().join(format!("wakeloop-{name}-{}", std::process::id()));
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let files = (open(), OtherProcess(open()));
        std::fs::remove_file(path).unwrap();
        files
    }

    /// Connections wait in each of so many turns. In how many does the listener give way?
    fn pauses(sharing: &Sharing, fd: RawFd, turns: u64) -> usize {
        let paused = |turn: &u64| {
            sharing.note_turn(turn - 1);
            sharing.gives_way(fd, *turn, Some(100))
        };
        (1..=turns).filter(paused).count()
    }

    #[test]
    fn a_listener_gives_way_to_a_process_that_does_not_run_so_many_times_in_each_period() {
        let (ours, other) = shared_file("patience");
        let (sharing, fd) = (Sharing::default(), ours.as_raw_fd());
        other.publishes(10);
        assert_eq!(pauses(&sharing, fd, 1000), PATIENCE as usize);
        assert_eq!(pauses(&sharing, fd, 1000), 0);
        // A new period begins.
        sharing.forgive();
        assert_eq!(pauses(&sharing, fd, 1000), PATIENCE as usize);
        // The other process accepts a connection, so it runs.
        other.publishes(11);
        assert_eq!(pauses(&sharing, fd, 1000), PATIENCE as usize);
    }

    #[test]
    fn a_listener_that_has_ended_is_no_longer_seen_by_other_processes() {
        let (ours, other) = shared_file("withdrawal");
        let (sharing, fd) = (Sharing::default(), ours.as_raw_fd());
        assert!(!other.sees_others());
        assert!(!sharing.look(fd, 0) && other.sees_others());
        sharing.end(fd);
        assert!(!other.sees_others());
    }
}
