//! The types that models are written with, from loom or from shuttle. The models of the mailbox also run with those of
//! the standard library, for the sanitizers.

cfg_select! {
    wakeloop_loom => {
        pub(in super::super) use loom::future::block_on;
        pub(in super::super) use loom::sync::atomic::AtomicUsize;
        pub(in super::super) use loom::sync::Mutex;
        pub(in super::super) use loom::thread;

        /// Runs `f` in every order of its threads with at most three preemptions (set LOOM_MAX_PREEMPTIONS
        /// for more).
        pub(in super::super) fn check(f: impl Fn() + Sync + Send + 'static) {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = model.preemption_bound.or(Some(3));
            model.max_branches = 100_000;
            model.check(f);
        }
    }
    wakeloop_shuttle => {
        pub(in super::super) use shuttle::future::block_on;
        pub(in super::super) use shuttle::sync::atomic::AtomicUsize;
        pub(in super::super) use shuttle::sync::Mutex;
        pub(in super::super) use shuttle::thread;

        /// How many preemptions at the places that matter. A bug needs few.
        const DEPTH: usize = 3;

        /// Runs `f` in random orders (SHUTTLE_ITERATIONS says how many), and as often in orders with few
        /// preemptions.
        pub(in super::super) fn check(f: impl Fn() + Sync + Send + 'static) {
            let iterations = std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|text| text.parse().ok());
            let iterations = iterations.unwrap_or(1000);
            let f = std::sync::Arc::new(f);
            let again = f.clone();
            shuttle::check_random(move || f(), iterations);
            shuttle::check_pct(move || again(), iterations, DEPTH);
        }
    }
    _ => {
        pub(in super::super) use crate::runtime::block_on;
        pub(in super::super) use std::sync::atomic::AtomicUsize;
        pub(in super::super) use std::sync::Mutex;
        pub(in super::super) use std::thread;

        /// Runs `f` many times, in the orders in which the system happens to run its threads.
        pub(in super::super) fn check(f: impl Fn() + Sync + Send + 'static) {
            let times = if cfg!(miri) { 5 } else { 500 };
            (0..times).for_each(|_| f());
        }
    }
}
