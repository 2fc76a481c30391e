//! `join!` and `select!`: several futures in one task. `opaque_debug!` is for the runtime itself.

/// Implements `Debug` for types that have nothing to show but their name.
macro_rules! opaque_debug {
    ($($name:literal [$($generics:tt)*] $type:ty;)+) => {$(
        impl<$($generics)*> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($name)
            }
        }
    )+};
}

pub(super) use opaque_debug;

/// Polls several futures together, up to twelve, and returns all outputs as a tuple.
///
/// ```
/// use wakeloop::runtime::{block_on, yield_now};
///
/// let (a, b) = block_on(async { wakeloop::join!(async { yield_now().await; 1 }, async { 2 }) });
/// assert_eq!((a, b), (1, 2));
/// ```
#[macro_export]
macro_rules! join {
    ($($future:expr),+ $(,)?) => {
        $crate::__join_pinned!([] [a b c d e f g h i j k l] $($future,)+)
    };
}

/// Gives each future a name, pins it, and polls all until each has its output.
#[doc(hidden)]
#[macro_export]
macro_rules! __join_pinned {
    ([$($done:tt)*] [$name:ident $($names:ident)*] $future:expr, $($rest:tt)*) => {
        $crate::__join_pinned!([$($done)* ($name $future)] [$($names)*] $($rest)*)
    };
    ([($first:ident $its_future:expr) $(($name:ident $future:expr))*] [$($unused:ident)*]) => {{
        let mut $first = ::std::pin::pin!($crate::runtime::macros::support::Output::new($its_future));
        $(let mut $name = ::std::pin::pin!($crate::runtime::macros::support::Output::new($future));)*
        ::std::future::poll_fn(move |cx| {
            let _shares = $crate::runtime::macros::support::Shares::new();
            let $first = $first.as_mut().advance(cx);
            $(let $name = _shares.poll(|| $name.as_mut().advance(cx));)*
            if $first.is_ready() $(&& $name.is_ready())* {
                return ::std::task::Poll::Ready(($first.output(), $($name.output(),)*));
            }
            $first.keep();
            $($name.keep();)*
            ::std::task::Poll::Pending
        })
        .await
    }};
}

/// Polls several futures together and runs the arm of the first that is ready. The others are dropped. If
/// several are ready, the one written first wins. A busy future that never finishes does not keep the others
/// from being polled.
///
/// ```
/// use wakeloop::runtime::block_on;
///
/// let text = block_on(async {
///     wakeloop::select! {
///         _ = std::future::pending::<()>() => "never".to_string(),
///         n = async { 7 } => format!("got {n}"),
///     }
/// });
/// assert_eq!(text, "got 7");
/// ```
#[macro_export]
macro_rules! select {
    ($($pattern:pat = $future:expr => $arm:expr),+ $(,)?) => {
        $crate::__select_nested!([] $(($pattern, $future, $arm))+)
    };
}

/// Races two futures: the first one, and the rest.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_nested {
    ([] ($pattern:pat, $future:expr, $arm:expr)) => {{
        let $pattern = $future.await;
        $arm
    }};
    ([] ($pattern:pat, $future:expr, $arm:expr) $(($patterns:pat, $futures:expr, $arms:expr))+) => {{
        match $crate::runtime::macros::support::either($future, $crate::__select_future!($(($futures))+)).await {
            $crate::runtime::macros::support::Either::First($pattern) => $arm,
            $crate::runtime::macros::support::Either::Second(rest) => {
                $crate::__select_match!(rest $(($patterns, $arms))+)
            }
        }
    }};
}

/// The future of the second and later arms.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_future {
    (($future:expr)) => { $future };
    (($future:expr) $(($futures:expr))+) => {
        $crate::runtime::macros::support::either($future, $crate::__select_future!($(($futures))+))
    };
}

/// The arms of the second and later futures.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_match {
    ($value:ident ($pattern:pat, $arm:expr)) => {{
        let $pattern = $value;
        $arm
    }};
    ($value:ident ($pattern:pat, $arm:expr) $(($patterns:pat, $arms:expr))+) => {
        match $value {
            $crate::runtime::macros::support::Either::First($pattern) => $arm,
            $crate::runtime::macros::support::Either::Second(rest) => {
                $crate::__select_match!(rest $(($patterns, $arms))+)
            }
        }
    };
}

/// The functions that the macros expand to. Not for direct use.
#[doc(hidden)]
pub mod support {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use pin_project_lite::pin_project;

    pub use crate::runtime::coop::Shares;

    pin_project! {
        /// A future, and later its output.
        #[project = OutputProjection]
        #[project_replace = OutputReplaced]
        #[derive(Debug)]
        pub enum Output<F: Future> {
            Running { #[pin] future: F },
            Ready { output: F::Output },
            Taken,
        }
    }

    impl<F: Future> Output<F> {
        pub fn new(future: F) -> Self {
            Output::Running { future }
        }

        /// Polls it, unless the output is there already.
        pub fn advance(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Advanced<'_, F> {
            let (now, kept) = match self.as_mut().project() {
                OutputProjection::Running { future } => match future.poll(cx) {
                    Poll::Ready(output) => (Some(output), false),
                    Poll::Pending => (None, false),
                },
                OutputProjection::Ready { .. } | OutputProjection::Taken => (None, true),
            };
            Advanced { place: self, now, kept }
        }
    }

    /// The progress of a future. An output that is new need not be stored if all others are there as well.
    #[derive(Debug)]
    pub struct Advanced<'a, F: Future> {
        place: Pin<&'a mut Output<F>>,
        now: Option<F::Output>,
        /// Whether the output is from an earlier poll.
        kept: bool,
    }

    impl<F: Future> Advanced<'_, F> {
        #[inline]
        pub fn is_ready(&self) -> bool {
            self.kept || self.now.is_some()
        }

        /// Stores the output for the next poll.
        #[inline]
        pub fn keep(mut self) {
            if let Some(output) = self.now {
                self.place.set(Output::Ready { output });
            }
        }

        /// Takes the output of a ready future, once.
        #[inline]
        pub fn output(self) -> F::Output {
            if let Some(output) = self.now {
                return output;
            }
            match self.place.project_replace(Output::Taken) {
                OutputReplaced::Ready { output } => output,
                _ => unreachable!("all futures were polled to their ends, and no output was taken"),
            }
        }
    }

    /// The output of whichever future was ready.
    #[derive(Debug)]
    pub enum Either<A, B> {
        First(A),
        Second(B),
    }

    pin_project! {
        #[derive(Debug)]
        pub struct Race<A, B> {
            #[pin]
            first: A,
            #[pin]
            second: B,
        }
    }

    /// Polls `first`, then `second`.
    pub fn either<A: Future, B: Future>(first: A, second: B) -> Race<A, B> {
        Race { first, second }
    }

    impl<A: Future, B: Future> Future for Race<A, B> {
        type Output = Either<A::Output, B::Output>;

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            let this = self.project();
            let shares = Shares::new();
            if let Poll::Ready(output) = this.first.poll(cx) {
                return Poll::Ready(Either::First(output));
            }
            shares.poll(|| this.second.poll(cx)).map(Either::Second)
        }
    }
}
