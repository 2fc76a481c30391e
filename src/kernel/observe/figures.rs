//! Tables of metrics and their snapshots, as Python has them.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::capi::Fallible;
use crate::capi::fallible::{dict, py_tuple, try_list};
use crate::histogram::Snapshot;
use crate::metrics::{Metric, Table, Value};

/// The figures of a snapshot by name. Histograms are the arguments of `wakeloop.Histogram._from_native`.
pub(crate) fn to_dict<'py>(py: Python<'py>, figures: &impl Table) -> PyResult<Bound<'py, PyDict>> {
    fn names<T: Table>(_: &T) -> &'static [Metric] {
        T::METRICS
    }
    let found = dict(py)?;
    for (metric, value) in names(figures).iter().zip(figures.values()) {
        let name = Fallible(metric.name());
        match value {
            Value::Number(number) => found.set_item(name, Fallible(number))?,
            Value::Time(time) => found.set_item(name, Fallible(time.as_nanos() as f64 / 1e9))?,
            Value::Histogram(histogram) => found.set_item(name, to_tuple(py, histogram)?)?,
            Value::Labelled(numbers) => {
                let labelled = dict(py)?;
                for (label, number) in numbers {
                    labelled.set_item(Fallible(label), Fallible(number))?;
                }
                found.set_item(name, labelled)?;
            }
        }
    }
    Ok(found)
}

/// Counts, sum and maximum, in nanoseconds.
fn to_tuple<'py>(py: Python<'py>, histogram: &Snapshot) -> PyResult<Bound<'py, PyTuple>> {
    let number = |number: u64| Ok(Fallible(number).into_pyobject(py)?.into_any());
    let counts = try_list(py, histogram.counts.into_iter().map(number))?;
    py_tuple(py, [counts.into_any(), number(histogram.sum)?, number(histogram.max)?])
}

/// A table as a list of names, kinds and help.
pub(crate) fn describe<'a, 'py>(
    py: Python<'py>,
    table: impl Iterator<Item = &'a Metric>,
) -> PyResult<Bound<'py, PyList>> {
    try_list(
        py,
        table.map(|metric| {
            let name = Fallible(metric.name()).into_pyobject(py)?.into_any();
            let [kind, help] = [metric.kind, metric.help]
                .map(|text| Ok::<_, PyErr>(Fallible(text).into_pyobject(py)?.into_any()));
            Ok(py_tuple(py, [name, kind?, help?])?.into_any())
        }),
    )
}
