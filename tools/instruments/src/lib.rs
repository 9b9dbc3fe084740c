//! Instruments that measure a network and compare variants of the network. The module [`profile`]
//! is available without any feature of the crate. The modules `bench`, `tune`, `quality` and
//! `bisect` require the feature `iree`. The instruments depend on the crate `tracewright`, but the
//! crate `tracewright` doesn't depend on the instruments.

#[cfg(feature = "iree")]
pub mod bench;
#[cfg(feature = "iree")]
pub mod bisect;
#[cfg(feature = "iree")]
pub mod calibrate;
pub mod profile;
#[cfg(feature = "iree")]
pub mod quality;
#[cfg(feature = "iree")]
pub mod tune;
