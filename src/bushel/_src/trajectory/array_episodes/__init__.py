"""Episodes in files of plain arrays: HDF5 in the layouts of robomimic and ALOHA, and folders of `.npz` files."""
