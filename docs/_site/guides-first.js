// How results of the search are sorted: pages that show how to do something come before those that state facts.
// Sphinx takes all of this in place of its own object, of which everything but `score` is a copy.
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    score + (/^(start|tutorial|guides\/)/.test(page) ? 200 : /^(changelog|development|releasing|explanation\/results)/.test(page) ? -100 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
