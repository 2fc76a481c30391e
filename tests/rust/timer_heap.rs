//! Compares the timer heap with a sorted map, and checks the guarantees in its module documentation.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;
use wakeloop::timer::{Slot, Slotted, TimerHeap};

#[derive(Clone)]
struct Item {
    id: u64,
    slot: Rc<Cell<Slot>>,
}

impl Item {
    fn new(id: u64) -> Item {
        Item { id, slot: Rc::new(Cell::new(Slot::NONE)) }
    }
}

impl Slotted for Item {
    fn set_slot(&self, slot: Slot) {
        self.slot.set(slot);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Remove(usize),
    PopDue(u16),
    Pop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..64u16).prop_map(Step::Insert),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => (0..64u16).prop_map(Step::PopDue),
        1 => Just(Step::Pop),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_sorted_map(steps in prop::collection::vec(step(), 0..400)) {
        let mut heap = TimerHeap::new();
        let mut model: BTreeMap<(u16, u64), Item> = BTreeMap::new();
        for (id, step) in steps.into_iter().enumerate() {
            let id = id as u64;
            match step {
                Step::Insert(when) => {
                    let item = Item::new(id);
                    heap.insert(when, item.clone());
                    model.insert((when, id), item);
                }
                Step::Remove(pick) if !model.is_empty() => {
                    let key = *model.keys().nth(pick % model.len()).unwrap();
                    let item = model.remove(&key).unwrap();
                    let removed = heap.remove(item.slot.get()).unwrap();
                    prop_assert_eq!(removed.id, item.id);
                    prop_assert!(item.slot.get().is_none());
                }
                Step::Remove(_) => prop_assert!(heap.remove(Slot::NONE).is_none()),
                Step::PopDue(now) => {
                    let due = model.first_key_value().map(|(key, _)| *key).filter(|key| key.0 <= now);
                    let popped = heap.pop_due(now).map(|(when, item)| (when, item.id));
                    prop_assert_eq!(popped, due);
                    due.map(|key| model.remove(&key));
                }
                Step::Pop => {
                    let popped = heap.pop().map(|(when, item)| (when, item.id));
                    prop_assert_eq!(popped, model.pop_first().map(|(key, _)| key));
                }
            }
            prop_assert_eq!(heap.len(), model.len());
            prop_assert_eq!(heap.peek(), model.first_key_value().map(|(key, _)| key.0));
        }
        while let Some((when, item)) = heap.pop() {
            let (key, _) = model.pop_first().unwrap();
            prop_assert_eq!((when, item.id), key);
            prop_assert!(item.slot.get().is_none());
        }
        prop_assert!(model.is_empty());
    }
}

#[test]
fn equal_deadlines_leave_in_the_order_they_came() {
    let mut heap = TimerHeap::new();
    for id in 0..1000 {
        heap.insert(1.5, Item::new(id));
    }
    for id in 0..1000 {
        assert_eq!(heap.pop_due(1.5).unwrap().1.id, id);
    }
    assert!(heap.is_empty());
}

#[test]
fn nothing_is_due_before_its_time() {
    let mut heap = TimerHeap::new();
    heap.insert(2.0, Item::new(1));
    assert!(heap.pop_due(1.999).is_none());
    assert_eq!(heap.pop_due(2.0).unwrap().1.id, 1);
}

#[test]
fn drained_items_know_that_they_left() {
    let items: Vec<_> = (0..100).map(Item::new).collect();
    let mut heap = TimerHeap::new();
    for item in &items {
        heap.insert(item.id ^ 37, item.clone());
    }
    assert_eq!(heap.iter().count(), 100);
    let drained = heap.drain();
    assert!(heap.is_empty());
    assert!(drained.iter().all(|(when, item)| *when == item.id ^ 37));
    assert_eq!(drained.len(), 100);
    assert!(items.iter().all(|item| item.slot.get().is_none()));
    heap.insert(1, items[0].clone());
    assert_eq!(heap.pop().unwrap().1.id, 0);
}

#[test]
fn a_foreign_slot_is_harmless() {
    let mut heap = TimerHeap::new();
    let mut larger = TimerHeap::new();
    let last = Item::new(5);
    (0..5).for_each(|id| larger.insert(1, Item::new(id)));
    larger.insert(1, last.clone());
    heap.insert(1, Item::new(1));
    assert!(heap.remove(last.slot.get()).is_none());
    assert!(heap.remove(Slot::NONE).is_none());
    assert_eq!(heap.len(), 1);
}
