//! A [`Mesh`] is a grid of devices with named axes. Sharding rules partition the axes of a network
//! over the grid of devices.

use std::fmt;
use std::str::FromStr;

/// A grid of devices with named axes. The device numbers increase along the last axis of the grid first.
///
/// ```
/// use tracewright_targets::Mesh;
///
/// let mesh: Mesh = "data=2,model=4".parse()?;
/// assert_eq!((mesh.devices(), mesh.axes[1].name.as_str()), (8, "model"));
/// # Ok::<(), tracewright_targets::MeshError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// The axes of the mesh; the axis that varies slowest comes first.
    pub axes: Vec<MeshAxis>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeshAxis {
    pub name: String,
    pub size: usize,
}

/// A sharding rule that partitions axes of a network over a mesh axis, such as `K,F,V=model`. A
/// sharding rule can also exclude axes from the partition, such as `V=none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRule {
    /// The names of the axes. The word [`ShardRule::EXPERTS`] stands for the network's axis of experts.
    pub axes: Vec<String>,
    /// The name of the mesh axis, or [`ShardRule::NONE`] to exclude the axes from the partition.
    pub over: String,
    /// Whether the rule has no effect on a tensor axis whose extent is not divisible by the number
    /// of devices. Otherwise such a tensor axis is an error.
    pub if_even: bool,
}

impl ShardRule {
    /// The word with which a sharding rule excludes axes from the partition.
    pub const NONE: &str = "none";

    /// The word that stands for the axis of experts in a sharding rule, such as `experts=model`.
    /// With this rule, each device along `model` stores whole experts (expert parallelism) instead
    /// of a part of each expert (tensor parallelism).
    pub const EXPERTS: &str = "experts";
}

/// A mesh, and the rules that partition a network over the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshRules {
    pub mesh: Mesh,
    pub rules: Vec<ShardRule>,
}

/// The reason why a text is not a valid mesh or sharding rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// A substring of the text is not a mesh axis.
    #[error(
        "`{0}` is not an axis of a mesh; expected NAME=DEVICES with at least one device, such as `model=4`"
    )]
    Axis(String),
    /// The text of the mesh contains the same mesh axis twice.
    #[error("the mesh has two axes with the name `{0}`")]
    Twice(String),
    /// The mesh has too many devices.
    #[error("the mesh `{0}` has more than {most} devices", most = Mesh::MOST)]
    Large(String),
    /// A substring of the text is not a sharding rule.
    #[error("`{0}` is not a sharding rule; expected AXES=MESH_AXIS, such as `K,F,V=model`")]
    Rule(String),
}

impl Mesh {
    /// The largest number of devices that a mesh can have.
    pub const MOST: usize = 1 << 20;

    /// The mesh axis for tensor parallelism in the declarations of networks.
    pub const MODEL: &str = "model";

    /// The mesh axis for expert parallelism in the declarations of networks.
    pub const EXPERT: &str = "expert";

    pub fn devices(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    pub fn axis(&self, name: &str) -> Option<&MeshAxis> {
        self.axes.iter().find(|axis| axis.name == name)
    }
}

/// Whether a StableHLO module can contain the text as the name of an axis.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses a mesh, for example `model=4,data=2`.
impl FromStr for Mesh {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let axis = |part: &str| {
            let (name, size) = part.split_once('=')?;
            let size: usize = size.trim().parse().ok().filter(|&size| size > 0)?;
            (is_name(name.trim()) && name.trim() != ShardRule::NONE)
                .then(|| MeshAxis { name: name.trim().into(), size })
        };
        let mut mesh = Self::default();
        for part in text.split(',') {
            let axis = axis(part).ok_or_else(|| MeshError::Axis(part.trim().into()))?;
            if mesh.axis(&axis.name).is_some() {
                return Err(MeshError::Twice(axis.name));
            }
            mesh.axes.push(axis);
        }
        let devices = mesh.axes.iter().try_fold(1usize, |devices, axis| devices.checked_mul(axis.size));
        match devices.filter(|&devices| devices <= Self::MOST) {
            Some(_) => Ok(mesh),
            None => Err(MeshError::Large(text.into())),
        }
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes.iter().map(|axis| format!("{}={}", axis.name, axis.size)).collect();
        f.write_str(&axes.join(","))
    }
}

/// Parses a sharding rule, for example `K,F,V=model`.
impl FromStr for ShardRule {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let wrong = || MeshError::Rule(text.into());
        let (axes, over) = text.split_once('=').ok_or_else(wrong)?;
        let axes: Vec<String> = axes.split(',').map(|axis| axis.trim().to_owned()).collect();
        if axes.iter().all(|axis| is_name(axis)) && is_name(over.trim()) {
            Ok(Self { axes, over: over.trim().into(), if_even: false })
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for ShardRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.axes.join(","), self.over)
    }
}
