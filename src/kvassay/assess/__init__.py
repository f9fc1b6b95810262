"""From contract and model to an evidence pack: plan, reference, measure, judge, pack, report."""
