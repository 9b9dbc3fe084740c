//! Instruments that measure a network and compare its forms: [`profile`], and with the feature `iree` `bench`, `tune`, `quality`,
//! `calibrate` and `bisect`. They use the facade `tracewright`, and the facade does not know them.

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
