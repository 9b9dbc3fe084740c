//! Adds measured times to the nodes, field paths and dispatched functions of a report.

use std::collections::{BTreeMap, BTreeSet};

use instruments::profile::{Profile, ProfiledDispatch, ProfiledPlace};

use super::model::*;

impl NetworkReport {
    /// Call [`Profile::check`] first. The profile's shares divide a dispatch's time among source lines, and
    /// the cost model a line's time among its nodes. A function that several layers call gets their mean.
    pub fn add_profile(&mut self, profile: Profile) {
        let mut elsewhere = 0.0;
        for stage in Stage::ALL {
            let placed = self.place(stage, &profile);
            if stage == Stage::Traced {
                elsewhere = (profile.dispatched() - placed).max(0.0);
            }
        }
        self.profile = Some(facts(profile, elsewhere));
    }

    /// Returns the seconds that it assigned.
    fn place(&mut self, stage: Stage, profile: &Profile) -> f64 {
        let index = |name: &str| {
            let of = |graph: &FunctionGraph| graph.stage == stage && graph.function == name;
            self.graphs.iter().position(of)
        };
        let Some(entry) = index(&profile.entry) else { return 0.0 };
        let mut layers: BTreeMap<String, usize> = BTreeMap::new();
        for call in self.graphs[entry].nodes.iter().filter(|node| node.class == NodeClass::Call) {
            layers.extend(index(&call.label).map(|index| (call.path.clone(), index)));
        }
        let mut calls: BTreeMap<usize, f64> = BTreeMap::from([(entry, 1.0)]);
        layers.values().for_each(|&index| *calls.entry(index).or_default() += 1.0);
        let mut placed = 0.0;
        for one in &profile.dispatches {
            let layer = one.layer.as_ref().and_then(|layer| layers.get(layer));
            for place in &one.places {
                let mut found = layer.into_iter().chain([&entry]).map(|&index| {
                    let nodes = self.graphs[index].computed_at(place, one);
                    (index, nodes)
                });
                let Some((index, nodes)) = found.find(|(_, nodes)| !nodes.is_empty()) else { continue };
                let seconds = one.seconds * place.share;
                placed += seconds;
                for (node, share) in nodes {
                    let measured = &mut self.graphs[index].nodes[node].measured;
                    *measured = Some(measured.unwrap_or_default() + seconds * share / calls[&index]);
                }
            }
        }
        placed
    }
}

impl FunctionGraph {
    /// The operations of a source line, and their shares of its time.
    fn computed_at(&self, place: &ProfiledPlace, dispatch: &ProfiledDispatch) -> Vec<(usize, f64)> {
        let whole = place.path_in(dispatch.layer.as_deref());
        let is_there = |node: &NodeFacts| {
            let computes = !matches!(
                node.class,
                NodeClass::Input
                    | NodeClass::Parameter
                    | NodeClass::Constant
                    | NodeClass::Call
                    | NodeClass::Result
            );
            let here = (&*node.file, node.line) == (&*place.file, place.line);
            computes && here && (node.path == place.path || node.path == whole)
        };
        let nodes: Vec<usize> = (0..self.nodes.len()).filter(|&node| is_there(&self.nodes[node])).collect();
        let all: f64 = nodes.iter().map(|&node| self.nodes[node].cost.seconds).sum();
        let even = 1.0 / nodes.len() as f64;
        let share = |node: usize| if all > 0.0 { self.nodes[node].cost.seconds / all } else { even };
        nodes.into_iter().map(|node| (node, share(node))).collect()
    }
}

fn facts(profile: Profile, elsewhere: f64) -> ProfileFacts {
    let mut paths: BTreeMap<&str, PathTime> = BTreeMap::new();
    let mut functions: BTreeMap<&str, FunctionTime> = BTreeMap::new();
    for one in &profile.dispatches {
        for place in &one.places {
            let time = paths
                .entry(&place.path)
                .or_insert_with(|| PathTime { path: place.path.clone(), ..PathTime::default() });
            time.seconds += one.seconds * place.share;
            time.calls += one.calls;
        }
        let time = functions.entry(&one.function).or_insert_with(|| FunctionTime {
            function: one.function.clone(),
            calls: 0.0,
            seconds: 0.0,
            bytes: Some(0.0),
            flops: Some(0.0),
            paths: BTreeSet::new(),
        });
        time.calls += one.calls;
        time.seconds += one.seconds;
        time.bytes = time.bytes.zip(one.bytes).map(|(sum, one)| sum + one);
        time.flops = time.flops.zip(one.flops).map(|(sum, one)| sum + one);
        time.paths.extend(one.places.iter().map(|place| place.path.clone()));
    }
    let mut paths: Vec<PathTime> = paths.into_values().collect();
    let mut functions: Vec<FunctionTime> = functions.into_values().collect();
    paths.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    functions.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let dispatched = profile.dispatched();
    let Profile { model, case, entry, variant, seconds, .. } = profile;
    ProfileFacts { model, case, entry, variant, seconds, dispatched, elsewhere, paths, functions }
}
