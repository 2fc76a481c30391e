//! How a poll waits, and whether it releases the GIL: one pure function of what the loop's parts know.

use std::time::Duration;

use super::gil_fairness::GilDemand;
use crate::reactor::Wait;

/// While a thread is computing: how long the loop waits for more events after a turn with events, before it releases
/// the GIL. This delays the thread once per switch interval. The interpreter can still make callbacks release the GIL.
const GRACE: Duration = Duration::from_micros(100);

/// How a poll is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// With the GIL. The wait is very short, if there is one.
    Held(Wait),
    /// Without the GIL, again and again up to this time. Only then the loop waits.
    Spin(u64),
    /// Without the GIL. With `yields` it stays released for at least as long as other threads need to take it.
    Away { wait: Wait, yields: bool },
}

/// The state of a loop before a poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    pub(crate) now: u64,
    /// There is something to do besides events and timers.
    pub(crate) ready: bool,
    /// Until the next timer; [`Wait::Not`] if `ready`.
    pub(crate) wait: Wait,
    /// The last poll reported events.
    pub(crate) had_events: bool,
}

/// Plans a poll. `demand` says who wants the GIL, and `spin` until when a spin would last. Each of them is asked at
/// most once, and only where its answer counts.
#[inline(always)]
pub(crate) fn plan(
    Outlook { now, ready, wait, had_events }: Outlook,
    demand: impl FnOnce() -> GilDemand,
    spin: impl FnOnce() -> Option<u64>,
) -> Plan {
    if wait == Wait::Not && !ready {
        // A timer is due.
        return Plan::Held(wait);
    }
    match demand() {
        GilDemand::YieldDue => Plan::Away { wait, yields: true },
        GilDemand::Hinted => Plan::Away { wait, yields: false },
        _ if ready => Plan::Held(wait),
        GilDemand::CpuBound if had_events => Plan::Held(shorter(wait, now)),
        GilDemand::Nobody if let Some(until) = spin() => Plan::Spin(until),
        GilDemand::CpuBound | GilDemand::Nobody => Plan::Away { wait, yields: false },
    }
}

/// A wait that ends with `wait`, but not later than after the grace.
fn shorter(wait: Wait, now: u64) -> Wait {
    match wait {
        Wait::Until { left, .. } if left < GRACE => wait,
        _ => Wait::within(now, GRACE),
    }
}

#[cfg(test)]
mod tests {
    use super::GilDemand::{CpuBound, Hinted, Nobody, YieldDue};
    use super::Plan::{Away, Held, Spin};
    use super::*;

    const NOW: u64 = 1_000_000_000;

    #[test]
    fn a_poll_is_planned_by_this_table() {
        let later = Wait::within(NOW, 2 * GRACE);
        let soon = Wait::within(NOW, GRACE / 2);
        let grace = Wait::within(NOW, GRACE);
        let spin = Some(NOW + 7);
        let stays = |wait| Away { wait, yields: false };
        let yields = |wait| Away { wait, yields: true };
        // Ready, the wait for the next timer, events in the last poll, who wants the GIL, and until when a spin lasts.
        for (ready, wait, had_events, demand, spin, expected) in [
            (true, Wait::Not, false, Nobody, spin, Held(Wait::Not)),
            (true, Wait::Not, true, CpuBound, spin, Held(Wait::Not)),
            (true, Wait::Not, true, Hinted, spin, stays(Wait::Not)),
            (true, Wait::Not, true, YieldDue, spin, yields(Wait::Not)),
            (false, Wait::Not, true, YieldDue, spin, Held(Wait::Not)),
            (false, Wait::Forever, false, Nobody, None, stays(Wait::Forever)),
            (false, later, true, Nobody, None, stays(later)),
            (false, later, false, Nobody, spin, Spin(NOW + 7)),
            (false, later, true, Hinted, spin, stays(later)),
            (false, later, true, YieldDue, spin, yields(later)),
            (false, Wait::Forever, false, CpuBound, spin, stays(Wait::Forever)),
            (false, Wait::Forever, true, CpuBound, spin, Held(grace)),
            (false, later, true, CpuBound, spin, Held(grace)),
            (false, soon, true, CpuBound, spin, Held(soon)),
        ] {
            let outlook = Outlook { now: NOW, ready, wait, had_events };
            assert_eq!(plan(outlook, || demand, || spin), expected, "{outlook:?} {demand:?} {spin:?}");
        }
    }

    #[test]
    fn a_due_timer_asks_for_no_yield_and_a_demand_for_no_spin() {
        let outlook = Outlook { now: NOW, ready: false, wait: Wait::Not, had_events: true };
        plan(outlook, || panic!("a yield would count as made"), || panic!());
        let outlook = Outlook { wait: Wait::Forever, ..outlook };
        for demand in [Hinted, YieldDue, CpuBound] {
            plan(outlook, || demand, || panic!("a spin would count as begun"));
        }
        plan(Outlook { ready: true, wait: Wait::Not, ..outlook }, || Nobody, || panic!());
    }
}
