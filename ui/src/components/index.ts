export { Button, type ButtonProps, IconButton, type IconButtonProps, Tooltip } from "./button";
export { ConfirmDialog, Dialog, Drawer } from "./dialog";
export { ErrorBoundary, ErrorNote, errorWords } from "./error";
export { Field, type FieldNames, type Option, Segmented, Switch, Tabs, TextField } from "./field";
export { classes, DrawnIcon, Icon, type IconSize, Logo, Spinner } from "./icon";
export { loadPopups, Menu, MenuChoice, MenuHeading, MenuItem, MenuSeparator, Popover, PopoverClose } from "./menu";
export { EmptyState, PhoneScreen, Skeleton } from "./screen";
export { Chip, Meter, PlusMinus, type Status, STATUS_LOOKS, StatusIcon, StatusState, Tag, type Tone } from "./status";
export { Countdown, Elapsed, Time, useNow } from "./time";
