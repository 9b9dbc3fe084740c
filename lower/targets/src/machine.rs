//! The rooflines of machines, and a list of named machines.

use std::borrow::Cow;
use std::str::FromStr;

/// The speed limits of a machine, for a roofline model.
///
/// Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model" (2009).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The number of bytes that the machine reads or writes per second.
    pub bandwidth: f64,
    /// The number of multiplications and additions per second.
    pub flops: f64,
    /// The time in seconds that the machine needs to start a dispatch.
    pub dispatch: f64,
}

impl Machine {
    /// Returns the roofline of two CPU cores in a server.
    pub const CPU: Self = Self { bandwidth: 15e9, flops: 100e9, dispatch: 5e-6 };
    /// Returns the roofline of one accelerator in a server.
    pub const GPU: Self = Self { bandwidth: 3e12, flops: 200e12, dispatch: 5e-6 };
}

/// A named machine, which you can use alone or linked with other machines of the same kind.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedMachine {
    /// The name of the machine on the command line. An unnamed machine has the text of its rates as its name.
    pub name: Cow<'static, str>,
    pub machine: Machine,
    /// The number of bytes per second that the machine sends to other machines over all its links.
    /// The machine receives as many bytes per second as the machine sends.
    pub link: f64,
    /// The number of bytes of the machine's memory; `None` if the number is unknown.
    pub memory: Option<u64>,
    /// The source of the numbers for this machine.
    pub source: &'static str,
}

/// The number of bytes per second over an Ethernet link with 10 Gbit/s.
const ETHERNET: f64 = 1.25e9;

impl NamedMachine {
    /// The notations in which you can specify a machine on the command line.
    pub const FORMS: &str = "cpu|gpu|h100|mi300x|tpu-v5e|BYTES:FLOPS[:LINK]";

    /// The machines that have names. The rates of arithmetic operations are for bf16 without sparsity.
    pub const ALL: &[Self] = &[
        Self {
            name: Cow::Borrowed("cpu"),
            machine: Machine::CPU,
            link: ETHERNET,
            memory: None,
            source: "two cores of a server and Ethernet of 10 Gbit/s, about",
        },
        Self {
            name: Cow::Borrowed("gpu"),
            machine: Machine::GPU,
            link: 300e9,
            memory: None,
            source: "an accelerator of a server, about",
        },
        Self {
            name: Cow::Borrowed("h100"),
            machine: Machine { bandwidth: 3.35e12, flops: 989.4e12, ..Machine::GPU },
            link: 450e9,
            memory: Some(80_000_000_000),
            source: "NVIDIA, \"H100 Tensor Core GPU\" data sheet, SXM: half of 1,979 TFLOPS, which are with sparsity, \
                     and half of 900 GB/s of NVLink, which are both directions",
        },
        Self {
            name: Cow::Borrowed("mi300x"),
            machine: Machine { bandwidth: 5.3e12, flops: 1307.4e12, ..Machine::GPU },
            link: 448e9,
            memory: Some(192_000_000_000),
            source: "AMD, \"Instinct MI300X Accelerator\" data sheet: 7 links of Infinity Fabric, half of 128 GB/s each",
        },
        Self {
            name: Cow::Borrowed("tpu-v5e"),
            machine: Machine { bandwidth: 819e9, flops: 197e12, ..Machine::GPU },
            link: 200e9,
            memory: Some(16_000_000_000),
            source: "Google Cloud, \"TPU v5e\", key chip specifications: half of 400 GB/s between chips, which are both \
                     directions",
        },
    ];
}

/// The text is neither a machine's name nor a list of rates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a machine; expected {}, or BYTES:OPERATIONS per second, such as 100e9:2e12, or \
    BYTES:OPERATIONS:LINK_BYTES per second, such as 100e9:2e12:10e9",
    .0, names()
)]
pub struct MachineError(pub String);

fn names() -> String {
    NamedMachine::ALL.iter().map(|machine| &*machine.name).collect::<Vec<_>>().join(", ")
}

/// Parses the name of a machine, or the machine's rates per second in the notation `BYTES:FLOPS[:LINK]`.
impl FromStr for NamedMachine {
    type Err = MachineError;

    fn from_str(text: &str) -> Result<Self, MachineError> {
        if let Some(named) = Self::ALL.iter().find(|machine| machine.name == text) {
            return Ok(named.clone());
        }
        let rate = |text: &str| text.parse::<f64>().ok().filter(|rate| *rate > 0.0 && rate.is_finite());
        let rates: Option<Vec<f64>> = text.split(':').map(rate).collect();
        let (bandwidth, flops, link) = match rates.as_deref() {
            Some(&[bandwidth, flops]) => (bandwidth, flops, ETHERNET),
            Some(&[bandwidth, flops, link]) => (bandwidth, flops, link),
            _ => return Err(MachineError(text.into())),
        };
        let machine = Machine { bandwidth, flops, ..Machine::CPU };
        Ok(Self { name: text.to_owned().into(), machine, link, memory: None, source: "as asked for" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_are_the_names_and_rates() {
        let forms: Vec<&str> = NamedMachine::FORMS.split('|').collect();
        let names: Vec<&str> = NamedMachine::ALL.iter().map(|machine| &*machine.name).collect();
        assert_eq!(forms[..forms.len() - 1], names);
        for name in names {
            assert_eq!(name.parse::<NamedMachine>().map(|machine| machine.name), Ok(name.to_owned().into()));
        }
        assert_eq!("1e9:2e12:3e10".parse::<NamedMachine>().map(|machine| machine.link), Ok(3e10));
        assert_eq!("1e9:2e12".parse::<NamedMachine>().map(|machine| machine.link), Ok(ETHERNET));
        for wrong in ["", "abacus", "1e9", "1e9:0", "1e9:inf", "1:2:3:4", "-1:2"] {
            assert_eq!(wrong.parse::<NamedMachine>(), Err(MachineError(wrong.into())));
        }
    }
}
