//! Reports the memory and operations of each device of a mesh.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tracewright::Plan;
use tracewright::footprint::readable;
use tracewright::lower::{Collective, CollectiveKind};
use tracewright::partition::{CallCost, DevicePartition};
use tracewright::targets::{Mesh, NamedMachine};

/// The memory and operations of each device of a mesh, as text and as JSON.
pub struct PartitionReport<'a> {
    pub plan: &'a Plan,
    pub mesh: Option<&'a Mesh>,
    /// If `--machine` is set.
    pub machine: Option<&'a NamedMachine>,
    pub partition: &'a DevicePartition,
}

/// Operation, type of the result, and number of devices.
type Kind = (CollectiveKind, String, usize);

/// How often each kind occurs in a call, and the bytes that a device sends for it.
fn kinds(collectives: &[Collective]) -> BTreeMap<Kind, (usize, f64)> {
    let mut kinds: BTreeMap<Kind, (usize, f64)> = BTreeMap::new();
    for one in collectives {
        let (count, sent) = kinds.entry((one.kind, one.ty.to_string(), one.devices)).or_default();
        *count += 1;
        *sent += one.sent_bytes();
    }
    kinds
}

impl PartitionReport<'_> {
    /// For `tracewright plan --mesh --json`.
    pub fn json(&self) -> Value {
        let Self { plan, partition, .. } = self;
        let call = |call: &CallCost| {
            let collective = |(kind, (count, sent)): (Kind, (usize, f64))| {
                json!({
                    "op": kind.0.to_string(), "type": kind.1, "devices": kind.2, "count": count, "sent_bytes": sent,
                })
            };
            let seconds = self.machine.map(|machine| call.seconds(machine));
            json!({
                "entry": call.entry,
                "tokens": call.tokens,
                "read_bytes": call.read,
                "activation_bytes": call.activations,
                "flops": call.flops,
                "sent_bytes": call.sent(),
                "collectives": kinds(&call.collectives).into_iter().map(collective).collect::<Vec<_>>(),
                "seconds": seconds.map(|seconds| json!({
                    "read": seconds.read,
                    "compute": seconds.compute,
                    "exchange": seconds.exchange,
                    "total": seconds.total(),
                })),
            })
        };
        json!({
            "mesh": self.mesh.map(Mesh::to_string),
            "devices": partition.devices,
            "dtype": plan.element.to_string(),
            "context": plan.context,
            "chunk": plan.chunk,
            "batch": plan.batch,
            "notes": partition.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "weight_bytes": partition.weights,
            "replicated_bytes": partition.replicated.values().sum::<usize>(),
            "replicated": partition.replicated.keys().collect::<Vec<_>>(),
            "state_bytes": partition.state,
            "activation_bytes": partition.activation_bytes(),
            "device_bytes": partition.bytes(),
            "machine": self.machine.map(|machine| json!({
                "name": machine.name,
                "source": machine.source,
                "memory_bytes": machine.memory,
                "bytes_per_second": machine.machine.bandwidth,
                "flops_per_second": machine.machine.flops,
                "link_bytes_per_second": machine.link,
            })),
            "fits": self.machine.filter(|machine| machine.memory.is_some()).map(|m| partition.check(m).is_ok()),
            "calls": partition.calls.iter().map(call).collect::<Vec<_>>(),
        })
    }

    // Writing to a string cannot fail.
    pub fn table(&self) -> String {
        let Self { plan, partition, .. } = self;
        let mut text = String::new();
        let _ = match self.mesh {
            Some(mesh) => writeln!(text, "each of {} devices, {mesh}", partition.devices),
            None => writeln!(text, "one device"),
        };
        let mut line = |name: &str, bytes: u64, what: &str| {
            let _ = writeln!(text, "{}", format!("{name:<14}{:>10}  {what}", readable(bytes)).trim_end());
        };
        let (whole, bytes) = (partition.replicated.len(), partition.replicated.values().sum::<usize>());
        let replicated = match self.mesh {
            Some(_) => {
                format!("{} of it in {whole} weights that all devices hold whole", readable(bytes as u64))
            }
            None => String::new(),
        };
        line("weights", partition.weights as u64, &replicated);
        let kinds_of_state = partition.state.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let sizes = format!("context {}, batch {}", plan.context, plan.batch);
        line("state", partition.state_bytes() as u64, &format!("{kinds_of_state}: {sizes}"));
        line("activations", partition.activation_bytes() as u64, &format!("at most, chunk {}", plan.chunk));
        line("together", partition.bytes(), "");
        if let Some(machine) = self.machine {
            let memory = machine.memory.map_or(String::new(), |memory| format!("{}, ", readable(memory)));
            let _ = writeln!(
                text,
                "{:<14}{:>10}  {memory}{:.0} GB/s, {:.0} TFLOP/s, {:.0} GB/s to others\n{:26}{}",
                "machine",
                machine.name,
                machine.machine.bandwidth / 1e9,
                machine.machine.flops / 1e12,
                machine.link / 1e9,
                "",
                machine.source,
            );
        }
        for note in &partition.notes {
            let _ = writeln!(text, "{note}");
        }
        self.calls(&mut text);
        text
    }

    fn calls(&self, text: &mut String) {
        let _ =
            write!(text, "\n{:<14}{:>8}{:>12}{:>12}{:>12}", "call", "tokens", "read", "GFLOP", "exchanged");
        if self.machine.is_some() {
            let _ = write!(text, "{:>10}{:>10}{:>10}{:>10}", "read ms", "comp. ms", "exch. ms", "total ms");
        }
        text.push('\n');
        for call in &self.partition.calls {
            let _ = write!(
                text,
                "{:<14}{:>8}{:>12}{:>12.3}{:>12}",
                call.entry,
                call.tokens,
                readable(call.read as u64),
                call.flops / 1e9,
                readable(call.sent() as u64),
            );
            if let Some(machine) = self.machine {
                let seconds = call.seconds(machine);
                for time in [seconds.read, seconds.compute, seconds.exchange, seconds.total()] {
                    let _ = write!(text, "{:>10.3}", time * 1e3);
                }
            }
            text.push('\n');
        }
        for call in self.partition.calls.iter().filter(|call| !call.collectives.is_empty()) {
            let _ = writeln!(text, "\n{:<14}exchanges", call.entry);
            for ((op, ty, devices), (count, sent)) in kinds(&call.collectives) {
                let _ = writeln!(
                    text,
                    "{count:>14}  {op} of {ty} among {devices}: {} from each",
                    readable(sent as u64)
                );
            }
        }
    }
}
