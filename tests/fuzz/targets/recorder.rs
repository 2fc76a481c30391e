//! The trace of the flight recorder: for any events and names, it is JSON in Chrome's format, its slices are inside of
//! each other or apart, and no event is lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::clock::{Moment, Scale};
use super::event::{Event, Kind, Origin, TypeName, type_number};
use super::names::Name;
use super::trace::{Process, Snapshot, Track};
use crate::fuzzing::{Input, python};

static TYPE: TypeName = || "a::Future<'_>";
const LOOPS: u64 = 3;
/// The events that a trace shows as instants.
const INSTANTS: [(Kind, &str); 2] = [(Kind::Timer, "timer"), (Kind::SlowTurn, "slow turn")];

fn text(input: &mut Input<'_>) -> String {
    let size = input.byte() % 32;
    // A name is never empty.
    format!("n{}", String::from_utf8_lossy(input.bytes(size.into())))
}

fn event(input: &mut Input<'_>, ticks: &mut u64, workers: bool) -> Event {
    let step = u64::from(input.byte());
    *ticks = if step == 255 { ticks.saturating_sub(3) } else { *ticks + (step << (step % 16)) };
    let kind = input.one_of(&Kind::ALL);
    let number = match kind {
        // Only an address of a name makes sense there.
        Kind::TaskPoll => input.one_of(&[0, type_number(&TYPE)]),
        Kind::Callback => u64::from(input.byte() % 5),
        Kind::Polled | Kind::Timer | Kind::SlowTurn => u64::from(input.byte()) << (input.byte() % 40),
        _ => input.number() >> 16,
    };
    let origin = Origin::track(if workers { 0 } else { usize::from(input.byte()) % LOOPS as usize });
    Event::new(*ticks, kind, if input.byte().is_multiple_of(8) { origin.with_turn() } else { origin }, number)
}

pub(crate) fn run(mut input: Input<'_>) {
    let names: HashMap<u64, Arc<Name>> = (0..input.byte() % 4)
        .map(|number| {
            let category = input.one_of(&["callback", "task"]);
            let details = if input.flag() { vec![("module", text(&mut input))] } else { Vec::new() };
            (number.into(), Arc::new(Name { text: text(&mut input), category, details }))
        })
        .collect();
    let process = Process {
        number: input.byte().into(),
        name: text(&mut input),
        threads: HashMap::from([(1, text(&mut input))]),
        details: vec![(text(&mut input), text(&mut input))],
    };
    // Up to 13 days, from where on a JSON number of microseconds has fewer decimals.
    let start = input.one_of(&[0, 1, 1 << 20, 1 << 50]);
    let (count, mut ticks) = (input.byte(), start);
    let loops: Vec<Event> = (0..count).map(|_| event(&mut input, &mut ticks, false)).collect();
    let mut worker_ticks = start;
    let mut worker = Vec::new();
    while !input.is_empty() {
        worker.push(event(&mut input, &mut worker_ticks, true));
    }
    let end = ticks.max(worker_ticks);
    let mut expected: BTreeMap<&str, usize> = INSTANTS
        .map(|(kind, name)| (name, loops.iter().filter(|event| event.kind() == Some(kind)).count()))
        .into();
    expected.insert("steal", worker.iter().filter(|event| event.kind() == Some(Kind::Steal)).count());
    let callbacks = loops.iter().filter(|event| event.kind() == Some(Kind::Callback));
    let callbacks: Vec<Option<String>> =
        callbacks.map(|event| names.get(&event.number()).map(|name| name.text.clone())).collect();
    let scale = Scale::between(
        Moment { ticks: start, nanos: start },
        Moment { ticks: end, nanos: start.saturating_add((end - start) * 3) },
    );
    let snapshot = Snapshot {
        scale,
        end,
        loops,
        one_ring: true,
        threads: (1..=LOOPS).collect(),
        names,
        workers: vec![Track { thread: 10, name: text(&mut input), events: worker }],
        dropped: count.into(),
    };
    let mut file = Vec::new();
    snapshot.write_json(&process, &mut file).expect("a vector can be written to");
    let details = process.details[0].clone();
    python::check("recorder", (file, expected, callbacks, details, u64::from(count)));
}
